#pragma once
// Which parameters an optimizer's integer ids are: of the models in a checkpoint, and of the weights
// of that model.
#include <tessera/state/optim_state.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace tessera {

/// A weight that an optimizer may have as a parameter.
struct OptimWeight {
  std::string fqn;
  std::size_t entry = 0;  // in StateDict::entries
  std::uint32_t tensor = kNoTensor;
};

/// The shape that the parameter must have, by what is kept for it: that of a leaf with an element
/// for each of its own, else what rows and columns of factored moments make together. nullopt: the
/// state says nothing (there is none, or it is of low rank).
std::optional<Shape> shape_by_state(const Manifest& manifest, const OptimState& optim,
                                    const OptimParameter& parameter);

struct IdAnswer {
  std::vector<OptimWeight> weights;  // of the model, or the part of it, that is taken
  IdMapping mapping;                 // candidate: index in `weights`, or -1
  std::string note;                  // why another answer could be meant; "" if none
  /// By id: several weights have its shape, and nothing says which is meant.
  std::vector<bool> undecided = {};
};

/// What map_ids() takes of an optimizer's ids.
struct IdShapes {
  std::vector<std::optional<Shape>> shapes;
  std::vector<std::size_t> group_sizes;
  bool sure = true;  // false: the optimizer is unknown, its state may have any shape
};

/// Whether an id has no name: which parameters the optimizer has is not known then.
inline bool has_unnamed_ids(const OptimState& optim) {
  return optim.dialect == OptimDialect::kById &&
         std::ranges::any_of(optim.parameters,
                             [](const OptimParameter& p) { return p.weight == kNoTensor; });
}

/// Parameters that other optimizers with ids have been given.
struct GivenWeights {
  std::set<std::uint32_t> tensors;
  bool certain = true;
};

/// `root`: the optimizer's index in Roles::optimizers.
IdAnswer find_parameters(const Manifest& manifest, const Roles& roles, std::int32_t root,
                         const std::vector<OptimWeight>& weights, const IdShapes& ids,
                         const GivenWeights& given);

}  // namespace tessera
