#pragma once
// Sharded tensors as values to pickle: the forms that sharded_value.h reads, as PyTorch 2.13 writes
// them.
#include <tessera/layout/layout.h>
#include <tessera/state/value.h>
#include <tessera/tensor/shape.h>

#include <cstdint>
#include <optional>

namespace tessera::rank_files {

/// A DeviceMesh seen from one rank. Its ranks are a tensor of the same archive: `rank_map`, int32.
Value device_mesh_value(const Mesh& mesh, std::int64_t rank, std::uint32_t rank_map);

/// A DTensor of `spec` over that mesh. `local`: its local part, an archive tensor or an object that
/// is made of several.
Value dtensor_value(const TensorSpec& spec, const Layout& layout, const Value& device_mesh,
                    Value local);

/// A 1-D ShardedTensor as FSDP1's LOCAL state dicts hold: shard r is [r * shard_numel, ..) of
/// `numel`; ranks past the end have none. `local`: nullopt on those.
Value flat_sharded_tensor_value(DType dtype, std::int64_t numel, std::int64_t shard_numel,
                                std::int64_t rank, std::int64_t world_size, bool requires_grad,
                                std::optional<std::uint32_t> local);

}  // namespace tessera::rank_files
