#pragma once
// The smallest bound of staged bytes that is kept: what one thread needs for its blocks. Below it
// transfers still run, in the smallest blocks there are, and may stage more than was allowed.
#include <cstdint>

namespace tessera {

inline constexpr std::uint64_t kLeastMemoryLimitBytes = std::uint64_t{1} << 20;

}  // namespace tessera
