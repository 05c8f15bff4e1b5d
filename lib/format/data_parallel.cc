#include "lib/format/data_parallel.h"

#include <fmt/format.h>
#include <tessera/base/error.h>

#include <algorithm>
#include <array>

namespace tessera {

std::int64_t data_parallel_ranks(const TargetRequest& request, std::string_view format) {
  if (!request.placements.empty() || !request.replicate.empty())
    fail(Code::kInvalidArgument,
         fmt::format("{} and {}: {} cuts every parameter over its ranks", kPlacementsFlag.flag,
                     kReplicateFlag.flag, format),
         "leave them out, or use --to torch-dcp");
  if (!request.mesh) return request.world_size.value_or(1);
  constexpr std::array<std::string_view, 6> kOthers = {"tp", "pp", "ep", "cp", "vpp", "replicate"};
  const bool is_other = std::ranges::any_of(request.mesh->dims(), [&](const MeshDim& dim) {
    return dim.size > 1 && std::ranges::find(kOthers, dim.name) != kOthers.end();
  });
  if (is_other || request.mesh->rank() > 1)
    fail(Code::kUnsupported,
         fmt::format("--mesh {}: {} is cut over one dimension, that of data-parallel ranks",
                     request.mesh->to_string(), format),
         "use --world-size N, or --to torch-dcp");
  return request.mesh->world_size();
}

}  // namespace tessera
