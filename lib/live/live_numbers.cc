#include "lib/live/live_numbers.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/tensor/cast.h>

#include <cmath>
#include <cstring>

namespace tessera {

namespace {

constexpr std::size_t kNumberBytes = 8;

Bytes cast_number(DType from, ByteView bytes, DType to) {
  Bytes out(static_cast<std::size_t>(element_bytes(to)));
  cast_elements(from, bytes, to, out);
  return out;
}

template <class T>
Bytes bytes_of(T number) {
  Bytes out(sizeof number);
  store_le(out.data(), number);
  return out;
}

/// A real that is a whole number within int64 counts as one: steps are stored either way.
std::optional<std::int64_t> whole(const Value& value) {
  if (value.kind() == Value::Kind::kBool) return value.as_bool() ? 1 : 0;
  if (value.is_int()) return value.as_int();
  const double real = value.as_real();
  if (std::nearbyint(real) != real || std::abs(real) >= 9.2e18) return std::nullopt;
  return static_cast<std::int64_t>(real);
}

}  // namespace

Value read_number(const TensorReader& reader, const Manifest& manifest, std::uint32_t tensor) {
  const DType dtype = manifest.tensors[tensor].spec.dtype;
  TESSERA_CHECK(manifest.tensors[tensor].spec.shape.numel() == 1 && is_castable(dtype));
  Bytes bytes(static_cast<std::size_t>(element_bytes(dtype)));
  reader.read(tensor, 0, 1, bytes);
  if (dtype == DType::kBool) return Value::boolean(bytes[0] != std::byte{0});
  if (is_integer(dtype)) {
    const Bytes integer = cast_number(dtype, bytes, DType::kInt64);
    return Value::integer(load_le<std::int64_t>(integer.data()));
  }
  double real = 0;
  to_double(dtype, bytes, {&real, 1});
  return Value::real(real);
}

Bytes number_bytes(const Value& value, DType dtype, bool exact) {
  if (!is_castable(dtype))
    fail(Code::kUnsupported, fmt::format("a number as {}", torch_name(dtype)));
  if (const auto integer = whole(value)) {
    Bytes out = cast_number(DType::kInt64, bytes_of(*integer), dtype);
    const Bytes back = cast_number(dtype, out, DType::kInt64);
    if (!exact) return out;
    if (back.size() != kNumberBytes || load_le<std::int64_t>(back.data()) != *integer)
      fail(Code::kOutOfRange, fmt::format("expected a number that {} holds exactly, found {}",
                                          torch_name(dtype), *integer));
    return out;
  }
  if (!is_floating(dtype))
    fail(Code::kOutOfRange, fmt::format("expected a whole number for {}, found {}",
                                        torch_name(dtype), value.as_real()));
  return cast_number(DType::kFloat64, bytes_of(value.as_real()), dtype);
}

}  // namespace tessera
