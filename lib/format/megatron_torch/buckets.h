#pragma once
// Which bucket layouts a run may have used, as its args say or leave open.
#include <cstdint>
#include <optional>
#include <vector>

#include "lib/format/megatron_torch/args.h"

namespace tessera::megatron_torch {

/// The size that args state: nullopt inside = one bucket. First the one that args make likely.
std::vector<std::optional<std::int64_t>> bucket_sizes(const Args& args, std::int64_t ranks);

}  // namespace tessera::megatron_torch
