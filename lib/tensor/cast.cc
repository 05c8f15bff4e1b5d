#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/tensor/cast.h>

#include <algorithm>
#include <array>
#include <span>
#include <type_traits>
#include <utility>

#include "lib/tensor/bfloat16_store.h"
#include "lib/tensor/minifloat.h"

// Two stages over small blocks: widen to one of four types without loss (float for floats up to 32
// bits, double, int64, uint64), then narrow. So 18 types need 18 loaders and 4 x 18 stores, not 18
// x 18. fp64 and integers reach the small floats through float, as PyTorch's .to() does.
namespace tessera {
namespace {

constexpr std::size_t kBlock = 512;  // elements; the wide block stays in the first-level cache

template <class T>
struct Tag {
  using type = T;
};
struct Bool {};

/// Calls f(Tag<T>) with the C++ type or minifloat format of `dtype`; false for types without
/// arithmetic.
template <class F>
bool with_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kBool:
      f(Tag<Bool>{});
      return true;
    case DType::kUInt8:
      f(Tag<std::uint8_t>{});
      return true;
    case DType::kInt8:
      f(Tag<std::int8_t>{});
      return true;
    case DType::kUInt16:
      f(Tag<std::uint16_t>{});
      return true;
    case DType::kInt16:
      f(Tag<std::int16_t>{});
      return true;
    case DType::kUInt32:
      f(Tag<std::uint32_t>{});
      return true;
    case DType::kInt32:
      f(Tag<std::int32_t>{});
      return true;
    case DType::kUInt64:
      f(Tag<std::uint64_t>{});
      return true;
    case DType::kInt64:
      f(Tag<std::int64_t>{});
      return true;
    case DType::kFloat16:
      f(Tag<minifloat::Float16>{});
      return true;
    case DType::kBFloat16:
      f(Tag<minifloat::BFloat16>{});
      return true;
    case DType::kFloat32:
      f(Tag<float>{});
      return true;
    case DType::kFloat64:
      f(Tag<double>{});
      return true;
    case DType::kFloat8E4M3Fn:
      f(Tag<minifloat::Float8E4M3Fn>{});
      return true;
    case DType::kFloat8E4M3FnUz:
      f(Tag<minifloat::Float8E4M3FnUz>{});
      return true;
    case DType::kFloat8E5M2:
      f(Tag<minifloat::Float8E5M2>{});
      return true;
    case DType::kFloat8E5M2FnUz:
      f(Tag<minifloat::Float8E5M2FnUz>{});
      return true;
    case DType::kFloat8E8M0Fnu:
      f(Tag<minifloat::Float8E8M0Fnu>{});
      return true;
    default:
      return false;
  }
}

template <class T>
constexpr bool kIsNumber = std::is_arithmetic_v<T>;
template <class T>
constexpr bool kIsMinifloat = !kIsNumber<T> && !std::is_same_v<T, Bool>;

/// The lossless wide type of T.
template <class T>
using Wide = std::conditional_t<
    std::is_same_v<T, double>, double,
    std::conditional_t<
        std::is_same_v<T, std::uint64_t>, std::uint64_t,
        std::conditional_t<std::is_integral_v<T> || std::is_same_v<T, Bool>, std::int64_t, float>>>;

template <class T>
void load_block(const std::byte* source, std::size_t numel, Wide<T>* wide) {
  for (std::size_t i = 0; i < numel; ++i) {
    if constexpr (std::is_same_v<T, Bool>) {
      wide[i] = source[i] != std::byte{0};
    } else if constexpr (kIsNumber<T>) {
      wide[i] = static_cast<Wide<T>>(load_le<T>(source + i * sizeof(T)));
    } else {
      using Code = typename T::Code;
      wide[i] = T::decode(load_le<Code>(source + i * sizeof(Code)));
    }
  }
}

template <class W>
bool is_finite(W value) {
  if constexpr (std::is_floating_point_v<W>) return std::isfinite(value);
  return true;
}

/// To an integer: floats truncate, what lies outside saturates and NaN is 0; integers wrap.
template <class T, class W>
T to_integer(W value, CastCounts& counts) {
  if constexpr (std::is_integral_v<W>) {
    counts.overflow_to_inf += !std::in_range<T>(value);
    return static_cast<T>(value);
  } else {
    // 2^digits is exact in every float type, max() is not.
    const W above = std::ldexp(W{1}, std::numeric_limits<T>::digits);
    const W whole = std::trunc(value);
    const bool too_low = whole < static_cast<W>(std::numeric_limits<T>::min());
    if (whole >= above || too_low || std::isnan(value)) {
      ++counts.overflow_to_inf;
      if (std::isnan(value)) return 0;
      return too_low ? std::numeric_limits<T>::min() : std::numeric_limits<T>::max();
    }
    counts.underflow_to_zero += whole == 0 && value != 0;
    return static_cast<T>(whole);
  }
}

template <class T, class W>
void store_block(const W* wide, std::size_t numel, std::byte* destination, CastCounts& counts) {
  if constexpr (std::is_same_v<T, minifloat::BFloat16> && std::is_same_v<W, float>)
    return store_bfloat16(std::as_bytes(std::span(wide, numel)), destination, counts);
  CastCounts found;
  for (std::size_t i = 0; i < numel; ++i) {
    const W value = wide[i];
    if constexpr (std::is_same_v<T, Bool>) {
      destination[i] = std::byte{value != 0};
    } else if constexpr (std::is_integral_v<T>) {
      const T result = to_integer<T>(value, found);
      store_le(destination + i * sizeof(T), result);
    } else if constexpr (kIsNumber<T>) {
      const T result = static_cast<T>(value);
      found.overflow_to_inf += !is_finite(result) && is_finite(value);
      found.underflow_to_zero += result == 0 && value != 0;
      store_le(destination + i * sizeof(T), result);
    } else {
      bool too_large;
      const auto code = T::encode(static_cast<float>(value), too_large);
      found.overflow_to_inf += too_large && is_finite(value);
      found.underflow_to_zero += T::is_zero(code) && value != 0;
      store_le(destination + i * sizeof(code), code);
    }
  }
  counts.overflow_to_inf += found.overflow_to_inf;
  counts.underflow_to_zero += found.underflow_to_zero;
}

[[noreturn]] void refuse(DType from, DType to) {
  fail(Code::kUnsupported,
       fmt::format("no cast from {} to {}: only bool, integers and real floats of 8 bits and more "
                   "are cast",
                   torch_name(from), torch_name(to)));
}

}  // namespace

bool is_castable(DType dtype) {
  return with_type(dtype, [](auto) {});
}

namespace {

template <class From>
CastCounts cast_from(ByteView source, DType to, MutableBytes destination, std::size_t numel) {
  CastCounts counts;
  const std::size_t from_bytes = source.size() / std::max<std::size_t>(numel, 1);
  const auto to_bytes = static_cast<std::size_t>(element_bytes(to));
  std::array<Wide<From>, kBlock> wide;
  for (std::size_t at = 0; at < numel; at += kBlock) {
    const std::size_t count = std::min(kBlock, numel - at);
    load_block<From>(source.data() + at * from_bytes, count, wide.data());
    with_type(to, [&](auto tag) {
      store_block<typename decltype(tag)::type>(wide.data(), count,
                                                destination.data() + at * to_bytes, counts);
    });
  }
  return counts;
}

}  // namespace

CastCounts cast_elements(DType from, ByteView source, DType to, MutableBytes destination) {
  if (!is_castable(from) || !is_castable(to)) refuse(from, to);
  const auto from_bytes = static_cast<std::size_t>(element_bytes(from));
  const std::size_t numel = source.size() / from_bytes;
  TESSERA_CHECK(source.size() == numel * from_bytes);
  TESSERA_CHECK(destination.size() == numel * static_cast<std::size_t>(element_bytes(to)));
  CastCounts counts;
  if (from == to) {
    if (numel > 0) std::memmove(destination.data(), source.data(), source.size());
    return counts;
  }
  if (from == DType::kFloat32 && to == DType::kBFloat16) {
    store_bfloat16(source, destination.data(), counts);
    return counts;
  }
  with_type(from, [&](auto tag) {
    counts = cast_from<typename decltype(tag)::type>(source, to, destination, numel);
  });
  return counts;
}

void to_double(DType from, ByteView source, std::span<double> destination) {
  if (!is_castable(from)) refuse(from, DType::kFloat64);
  TESSERA_CHECK(source.size() ==
                destination.size() * static_cast<std::size_t>(element_bytes(from)));
  cast_elements(from, source, DType::kFloat64,
                {reinterpret_cast<std::byte*>(destination.data()), destination.size_bytes()});
}

}  // namespace tessera
