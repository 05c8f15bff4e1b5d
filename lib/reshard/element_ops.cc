#include "lib/reshard/element_ops.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/state/manifest.h>
#include <tessera/tensor/region_copy.h>

namespace tessera {

namespace {

/// Flips the sign bit of every `step`-th float of `width` bytes, starting with number `first`.
void flip_signs(MutableBytes bytes, std::size_t width, std::size_t first, std::size_t step) {
  for (std::size_t at = first * width + width - 1; at < bytes.size(); at += step * width) {
    bytes[at] ^= std::byte{0x80};
  }
}

template <class T>
void negate_integers(MutableBytes bytes) {
  for (std::size_t at = 0; at + sizeof(T) <= bytes.size(); at += sizeof(T)) {
    store_le<T>(bytes.data() + at, static_cast<T>(T{0} - load_le<T>(bytes.data() + at)));
  }
}

void negate(DType dtype, MutableBytes bytes) {
  if (is_floating(dtype) && dtype != DType::kFloat8E8M0Fnu && dtype != DType::kFloat4E2M1FnX2) {
    flip_signs(bytes, static_cast<std::size_t>(element_bytes(dtype)), 0, 1);
    return;
  }
  if (is_complex(dtype)) {
    flip_signs(bytes, static_cast<std::size_t>(element_bytes(dtype)) / 2, 0, 1);
    return;
  }
  if (is_integer(dtype)) {
    switch (element_bytes(dtype)) {
      case 1:
        return negate_integers<std::uint8_t>(bytes);
      case 2:
        return negate_integers<std::uint16_t>(bytes);
      case 4:
        return negate_integers<std::uint32_t>(bytes);
      case 8:
        return negate_integers<std::uint64_t>(bytes);
      default:
        break;
    }
  }
  fail(Code::kUnsupported, fmt::format("a negated view of {}", torch_name(dtype)));
}

}  // namespace

void apply_source_flags(DType dtype, std::uint8_t flags, MutableBytes elements) {
  if ((flags & Source::kByteSwap) != 0) swap_bytes(elements, swap_unit_bytes(dtype));
  if ((flags & Source::kConj) != 0) {
    if (!is_complex(dtype)) {
      fail(Code::kUnsupported, fmt::format("a conjugated view of {}", torch_name(dtype)));
    }
    flip_signs(elements, static_cast<std::size_t>(element_bytes(dtype)) / 2, 1, 2);
  }
  if ((flags & Source::kNeg) != 0) negate(dtype, elements);
}

}  // namespace tessera
