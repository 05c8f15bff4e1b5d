#pragma once
// Which parameters of a rank the ids of its optimizer are, where nothing names them: by order and
// shape, and where that leaves a doubt with Megatron's rule for groups (biases and vectors do not
// decay). Pure: the reader asks it what ids mean, and the writer whether a reader would find out.
//
//   groups      {decays: [6,6], [12,6]}, {does not: [6]}     shapes of the ids' state
//   candidates  w0 [6,6], b0 [6], w1 [12,6]                  the rank's tensors, in order
//   answer      {0, 2}, {1}
#include <tessera/state/value.h>
#include <tessera/tensor/dtype.h>
#include <tessera/tensor/shape.h>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::megatron_torch {

/// Option of a group: its members by their names in the whole model, as the source lists them.
/// Written where a reader would not find the same by order and shape; ids are then the rank's
/// tensors of these names, in the order of its model. It is no part of the state.
inline constexpr std::string_view kMembers = "tessera.members";
/// Option of a group: the names of its ids, in their order, as torch.optim keeps it.
inline constexpr std::string_view kParamNames = "param_names";

struct IdGroup {
  std::vector<std::optional<Shape>> shapes;  // of each id's parameter; nullopt: it has no state
  bool decays = true;
};
struct IdCandidate {
  std::string_view fqn;
  Shape shape;
  DType dtype = DType::kFloat32;
};

/// Per group and id the number of its candidate; nullopt: a doubt remains.
using IdMatch = std::vector<std::vector<std::size_t>>;
std::optional<IdMatch> match_by_shape(const std::vector<IdGroup>& groups,
                                      const std::vector<IdCandidate>& candidates);

/// The names that a group records; nullopt: it records none.
std::optional<std::vector<std::string>> recorded_members(const Value& group);
/// A list of names, as groups have them.
Value names_value(const std::vector<std::string>& names);

}  // namespace tessera::megatron_torch
