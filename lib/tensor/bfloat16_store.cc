#include "lib/tensor/bfloat16_store.h"

#include <algorithm>
#include <cstdint>

#include "lib/base/cpu.h"

namespace tessera {
namespace {

constexpr std::size_t kCounted = std::size_t{1} << 16;  // what a sum of 32 bits takes

/// Without branches, so that it becomes vectors.
TESSERA_INLINE void store(const std::byte* values, std::size_t count, std::byte* destination,
                          std::uint32_t& overflows, std::uint32_t& underflows) {
  std::uint32_t over = 0, under = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const auto bits = load_le<std::uint32_t>(values + 4 * i);
    const std::uint32_t size = bits & 0x7FFFFFFFU;
    const std::uint32_t nearest = (bits + 0x7FFFU + (bits >> 16 & 1U)) >> 16;
    const std::uint32_t quiet = bits >> 16 | 0x40U;
    const std::uint32_t code = size > 0x7F800000U ? quiet : nearest;
    over += static_cast<std::uint32_t>(size < 0x7F800000U) &
            static_cast<std::uint32_t>((code & 0x7FFFU) >= 0x7F80U);
    under +=
        static_cast<std::uint32_t>(size != 0) & static_cast<std::uint32_t>((code & 0x7FFFU) == 0);
    store_le(destination + 2 * i, static_cast<std::uint16_t>(code));
  }
  overflows = over;
  underflows = under;
}

TESSERA_WIDE void store_wide(const std::byte* values, std::size_t count, std::byte* destination,
                             std::uint32_t& overflows, std::uint32_t& underflows) {
  store(values, count, destination, overflows, underflows);
}
void store_any(const std::byte* values, std::size_t count, std::byte* destination,
               std::uint32_t& overflows, std::uint32_t& underflows) {
  store(values, count, destination, overflows, underflows);
}

}  // namespace

void store_bfloat16(ByteView values, std::byte* destination, CastCounts& counts) {
  const bool wide = has_wide_vectors();
  const std::size_t numel = values.size() / 4;
  for (std::size_t at = 0; at < numel; at += kCounted) {
    const std::size_t count = std::min(kCounted, numel - at);
    std::uint32_t over = 0, under = 0;
    wide ? store_wide(values.data() + 4 * at, count, destination + 2 * at, over, under)
         : store_any(values.data() + 4 * at, count, destination + 2 * at, over, under);
    counts.overflow_to_inf += over;
    counts.underflow_to_zero += under;
  }
}

}  // namespace tessera
