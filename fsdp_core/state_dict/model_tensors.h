#pragma once
// The names of a model's state dict and what this rank holds of each: the module tree walked as
// torch.nn.Module.state_dict does (parameters, buffers, then children; a module held twice is
// listed twice). No data moves, nothing is collective.
#include <ATen/core/Tensor.h>
#include <tessera/fsdp/training.h>
#include <tessera/state/live_state.h>
#include <tessera/tensor/chunk.h>

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "fsdp_core/runtime/unit.h"

namespace tessera::fsdp {

struct ModelTensor {
  std::string fqn;
  at::Tensor local;                   // this rank's part: the shard parameter, or the tensor itself
  Shape shape;                        // of the whole
  Chunk chunk;                        // what `local` is of it; not a whole box: dense
  at::ScalarType dtype = at::kFloat;  // as it is stored; differs from local's for a cast buffer
  bool is_parameter = false;
  /// Where the unit's own whole begins in `shape`: not at 0 where it is itself a part, by the
  /// unit's extension.
  std::vector<std::int64_t> origin;
  bool replicated = true;              // other ranks hold the same part
  bool same_across_extension = false;  // and those of the unit's extension the same whole
  std::optional<std::size_t> tied_to;  // an earlier entry with the same tensor
  std::shared_ptr<detail::Unit> unit;  // null: not sharded
  const ParamGroup* group = nullptr;
  std::size_t index = 0;  // in the group
};

struct ModelTensors {
  std::vector<ModelTensor> tensors;
  std::vector<std::shared_ptr<detail::Unit>> units;  // children before parents
  std::vector<std::string> unit_fqns;
  /// Untied parameters by what module->parameters() gives.
  std::unordered_map<const c10::TensorImpl*, std::size_t> by_parameter;
};

/// Rewrites `live` from coordinates of the unit's own whole to coordinates of `tensor.shape`, which
/// is larger where the unit's whole is itself a part.
void place_in_whole(LiveTensor& live, const ModelTensor& tensor);

/// Throws kInvalidArgument where a unit is inside forward, backward or summon.
ModelTensors model_tensors(const ModuleRef& model);

}  // namespace tessera::fsdp
