#pragma once
// What one rank's model file says of its flat parameters, and where in them its parts of the
// model's parameters lie. Pure.
//
//   {"modules": [{"name": FQN of an FSDP module, "handles": [HANDLE, ..]}, ..]}
//
//   HANDLE          flat_param.data      this rank's run of the flat parameter, padding at its end
//                   flat_param._fqns     names of the parameters in it, below the module
//                   flat_param._shapes   theirs
//     2.1 and newer flat_param._shard_param_infos     for each whether it is in the shard, where, and
//                                                     which of its elements (the last one counts)
//     before        flat_param._shard_indices         first and last parameter in the shard
//                   flat_param._shard_param_offsets   of each of these, which of its elements
//
// Source: olmo/checkpoint.py, LocalShardedCheckpointer.
#include <tessera/encoding/torch_archive.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::olmo_local {

/// This rank's elements [begin, end) of a parameter: from `first_element` of an archive tensor on.
struct ParameterRun {
  std::string fqn;
  TensorSpec spec;  // of the whole parameter
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::uint32_t tensor = 0;
  std::int64_t first_element = 0;
};

/// "transformer.blocks.0" of "_fsdp_wrapped_module.transformer.blocks.0".
std::string without_wrappers(std::string_view name);

/// In the order of the file; parameters of which this rank holds nothing are there with begin ==
/// end. Throws kCorrupt for what contradicts itself, kUnsupported for another form.
std::vector<ParameterRun> parameter_runs(const TorchArchive& archive);

}  // namespace tessera::olmo_local
