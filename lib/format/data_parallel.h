#pragma once
// Targets that are cut over data-parallel ranks alone: FairScale and DeepSpeed ZeRO.
#include <tessera/format/format_driver.h>

#include <cstdint>
#include <string_view>

namespace tessera {

/// The ranks that `request` asks for, by --world-size or a mesh. Throws kUnsupported for a mesh of
/// more than one dim, and for a dim that does not stand for data-parallel ranks (tp, replicate, ...);
/// kInvalidArgument for placements and replicas, which these formats do not have.
std::int64_t data_parallel_ranks(const TargetRequest& request, std::string_view format);

}  // namespace tessera
