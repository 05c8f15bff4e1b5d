#pragma once
// Bytes and little-endian numbers. ByteView borrows; Bytes owns.
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

namespace tessera {

static_assert(std::endian::native == std::endian::little,
              "the copy paths assume a little-endian host");

using Bytes = std::vector<std::byte>;
using ByteView = std::span<const std::byte>;
using MutableBytes = std::span<std::byte>;

inline constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

inline ByteView as_bytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}
inline std::string_view as_text(ByteView bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Reads a little-endian number from possibly unaligned bytes. The caller has checked the length.
template <class T>
T load_le(const std::byte* from) {
  static_assert(std::is_trivially_copyable_v<T>);
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
template <class T>
void store_le(std::byte* to, T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::memcpy(to, &value, sizeof value);
}

}  // namespace tessera
