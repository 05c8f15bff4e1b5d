#pragma once
// The smallest memory limit, in bytes, that transfers obey: what one thread needs for its blocks.
// With a lower limit they still run, in the smallest blocks, and may stage more than the limit.
#include <cstdint>

namespace tessera {

inline constexpr std::uint64_t kLeastMemoryLimitBytes = std::uint64_t{1} << 20;

}  // namespace tessera
