#include "lib/live/live_numbers.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/tensor/cast.h>

#include <charconv>
#include <cmath>

namespace tessera {

namespace {

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

/// The value of one dense element.
Value number_of(DType dtype, ByteView bytes) {
  if (dtype == DType::kBool) return Value::boolean(bytes[0] != std::byte{0});
  if (dtype == DType::kUInt64)
    if (const auto number = load_le<std::uint64_t>(bytes.data()); number > INT64_MAX)
      return Value::big_integer(fmt::format("{}", number));
  if (is_integer(dtype)) {
    const Bytes integer = cast_number(dtype, bytes, DType::kInt64);
    return Value::integer(load_le<std::int64_t>(integer.data()));
  }
  double real = 0;
  to_double(dtype, bytes, {&real, 1});
  return Value::real(real);
}

bool is_real(const Value& value) { return value.kind() == Value::Kind::kFloat; }

/// A real that is a whole number counts as one: steps are stored either way.
bool is_whole(const Value& value) {
  return !is_real(value) ||
         (std::isfinite(value.as_real()) && std::nearbyint(value.as_real()) == value.as_real());
}

/// All digits of a whole number: the same whatever holds it.
std::string decimal(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::kBool:
      return value.as_bool() ? "1" : "0";
    case Value::Kind::kInt:
      return fmt::format("{}", value.as_int());
    case Value::Kind::kBigInt:
      return value.as_string();
    default:
      return fmt::format("{:.0f}", value.as_real() + 0.0);  // -0.0 as well
  }
}

/// All of `digits` as a T. Throws kOutOfRange.
template <class T>
T parsed(const std::string& digits) {
  const char* const end = digits.data() + digits.size();
  T number = 0;
  const auto [stop, error] = std::from_chars(digits.data(), end, number);
  if (error != std::errc() || stop != end)
    fail(Code::kOutOfRange, fmt::format("expected a number of 64 bits, found {}", digits));
  return number;
}

Bytes cast_whole(const std::string& digits, DType dtype) {
  if (is_floating(dtype))
    return cast_number(DType::kFloat64, bytes_of(parsed<double>(digits)), dtype);
  if (digits.starts_with('-'))
    return cast_number(DType::kInt64, bytes_of(parsed<std::int64_t>(digits)), dtype);
  return cast_number(DType::kUInt64, bytes_of(parsed<std::uint64_t>(digits)), dtype);
}

Bytes cast_value(const Value& value, DType dtype) {
  switch (value.kind()) {
    case Value::Kind::kBool:
      return cast_number(DType::kInt64, bytes_of(std::int64_t{value.as_bool()}), dtype);
    case Value::Kind::kInt:
      return cast_number(DType::kInt64, bytes_of(value.as_int()), dtype);
    case Value::Kind::kBigInt:
      return cast_whole(value.as_string(), dtype);
    default:
      if (is_floating(dtype)) return cast_number(DType::kFloat64, bytes_of(value.as_real()), dtype);
      return cast_whole(decimal(value), dtype);
  }
}

}  // namespace

Value read_number(const TensorReader& reader, const Manifest& manifest, std::uint32_t tensor) {
  const DType dtype = manifest.tensors[tensor].spec.dtype;
  TESSERA_CHECK(manifest.tensors[tensor].spec.shape.numel() == 1 && is_castable(dtype));
  Bytes bytes(static_cast<std::size_t>(element_bytes(dtype)));
  reader.read(tensor, 0, 1, bytes);
  return number_of(dtype, bytes);
}

Bytes number_bytes(const Value& value, DType dtype, bool exact) {
  if (!is_castable(dtype))
    fail(Code::kUnsupported, fmt::format("a number as {}", torch_name(dtype)));
  if (!is_whole(value) && !is_floating(dtype))
    fail(Code::kOutOfRange, fmt::format("expected a whole number for {}, found {}",
                                        torch_name(dtype), value.as_real()));
  Bytes out = cast_value(value, dtype);
  const bool counts = exact || !is_floating(dtype);
  if (counts && is_whole(value) && decimal(number_of(dtype, out)) != decimal(value))
    fail(Code::kOutOfRange, fmt::format("expected a number that {} holds exactly, found {}",
                                        torch_name(dtype), decimal(value)));
  if (exact && is_real(value) && std::isfinite(value.as_real()) && is_floating(dtype) &&
      !std::isfinite(number_of(dtype, out).as_real()))
    fail(Code::kOutOfRange,
         fmt::format("expected a number within {}, found {}", torch_name(dtype), value.as_real()));
  return out;
}

}  // namespace tessera
