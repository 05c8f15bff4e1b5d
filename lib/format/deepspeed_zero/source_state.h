#pragma once
// Any state as DeepSpeed sees one: groups of trained parameters with equal leaves, and what is not
// trained. Both writers start from this.
//
//   Manifest --roles, canonical optimizer--> SourceState --> ZeRO files | Universal folder
//
// Refused (kUnsupported, naming the feature and the tensor): several models or optimizers, state
// that has another shape than its parameter, leaves or steps that differ inside a group, masters of
// several types in one group, keys that DeepSpeed keeps for itself. Pure.
#include <tessera/format/format_driver.h>
#include <tessera/state/optim_state.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lib/format/deepspeed_zero/files.h"

namespace tessera::deepspeed {

/// A leaf with its parameter's shape, for every parameter of its group that has state.
struct FlatLeaf {
  std::string name;
  DType dtype = DType::kFloat32;
};
/// A leaf that a group has once: a number, or a 0-dim tensor of the source.
struct ScalarLeaf {
  std::string name;
  Value value;  // a tensor reference, or the number
};

struct SourceParameter {
  std::string name;
  Shape shape;
  std::uint32_t weight = kNoTensor;
  std::uint32_t master = kNoTensor;  // the weight where there is no master
  bool has_state = false;
  std::vector<std::uint32_t> leaves;  // in the order of SourceGroup::flat_leaves
  std::vector<Value> scalars;         // in the order of SourceGroup::scalars
};

struct SourceGroup {
  std::vector<SourceParameter> parameters;
  std::vector<FlatLeaf> flat_leaves;
  std::vector<ScalarLeaf> scalars;
  ValueDict options;  // everything but `params`
  DType master = DType::kFloat32;
  bool has_state() const { return !flat_leaves.empty() || !scalars.empty(); }
};

/// One name of the model.
struct ModuleEntry {
  enum class Part : std::uint8_t { kTrained, kFrozen, kBuffer, kTied };
  std::string name;
  std::uint32_t tensor = kNoTensor;
  Part part = Part::kTrained;
  std::string stored;              // kTied: the name that is stored
  std::uint32_t fp32 = kNoTensor;  // optim.state.<name>.fp32 of what is not trained
};

struct SourceState {
  std::vector<SourceGroup> groups;
  std::vector<ModuleEntry> module;
  std::vector<std::pair<std::string, Value>> module_values;
  Value module_attributes;
  Value fields;   // of the model file
  Value globals;  // of the optimizer file
  Naming naming;
  /// Weights and masters are other bytes: a target without room for both loses the weights.
  bool separate_weights = false;
  bool has_fp32_of_rest = false;  // some of what is not trained has an fp32
  bool fp32_of_all_rest = false;  // all of it has
  std::vector<Note> notes;
  std::vector<LeftOut> left_out;
  std::vector<std::uint32_t> restated;  // weights that are kept as their masters alone
};

/// `one_step_per_group`: steps that differ inside a group are refused.
SourceState source_state(const Manifest& source, const TargetRequest& request,
                         std::string_view format, bool one_step_per_group);

/// True when both tensors are read from the same bytes in the same way.
bool same_bytes(const Manifest& manifest, std::uint32_t a, std::uint32_t b);

}  // namespace tessera::deepspeed
