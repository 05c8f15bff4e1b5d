#include "lib/format/hdf5/dtype.h"

#include <fmt/format.h>

namespace tessera::h5 {
namespace {

std::optional<DType> integer_dtype(std::uint32_t size, bool is_signed) {
  switch (size) {
    case 1:
      return is_signed ? DType::kInt8 : DType::kUInt8;
    case 2:
      return is_signed ? DType::kInt16 : DType::kUInt16;
    case 4:
      return is_signed ? DType::kInt32 : DType::kUInt32;
    case 8:
      return is_signed ? DType::kInt64 : DType::kUInt64;
    default:
      return std::nullopt;
  }
}

struct FloatLayout {
  DType dtype;
  std::uint32_t bytes, exponent_bits, mantissa_bits, bias;
};
constexpr FloatLayout kFloats[] = {
    {DType::kFloat16, 2, 5, 10, 15},    {DType::kBFloat16, 2, 8, 7, 127},
    {DType::kFloat32, 4, 8, 23, 127},   {DType::kFloat64, 8, 11, 52, 1023},
    {DType::kFloat8E4M3Fn, 1, 4, 3, 7}, {DType::kFloat8E5M2, 1, 5, 2, 15},
};

/// `bytes`: of one float, half of a complex number.
std::optional<DType> float_dtype(const TypeInfo& type, std::uint32_t bytes) {
  for (const FloatLayout& f : kFloats) {
    const bool fits = bytes == f.bytes && type.fills_its_bytes && type.mantissa == 0 &&
                      type.mantissa_bits == f.mantissa_bits && type.exponent == f.mantissa_bits &&
                      type.exponent_bits == f.exponent_bits && type.sign == 8 * f.bytes - 1 &&
                      type.bias == f.bias;
    if (fits) return f.dtype;
  }
  return std::nullopt;
}

std::optional<DType> complex_dtype(const TypeInfo& type) {
  switch (float_dtype(type, type.size / 2).value_or(DType::kBool)) {
    case DType::kFloat16:
      return DType::kComplex32;
    case DType::kFloat32:
      return DType::kComplex64;
    case DType::kFloat64:
      return DType::kComplex128;
    default:
      return std::nullopt;
  }
}

bool is_raw_bits(const TypeInfo& type) {
  return type.type_class == TypeClass::kInt || type.type_class == TypeClass::kUInt ||
         type.type_class == TypeClass::kOpaque;
}

}  // namespace

std::optional<DType> dtype_of(const TypeInfo& type, std::string_view dtype_attribute) {
  if (is_raw_bits(type)) {
    const auto named = dtype_from_torch_name(dtype_attribute);
    if (named && !is_quantized(*named) && bits(*named) == static_cast<int>(8 * type.size))
      return named;
  }
  switch (type.type_class) {
    case TypeClass::kInt:
      return integer_dtype(type.size, true);
    case TypeClass::kUInt:
      return integer_dtype(type.size, false);
    case TypeClass::kFloat:
      return float_dtype(type, type.size);
    case TypeClass::kBool:
      return type.size == 1 ? std::optional(DType::kBool) : std::nullopt;
    case TypeClass::kComplex:
      return complex_dtype(type);
    default:
      return std::nullopt;
  }
}

std::string describe_type(const TypeInfo& type) {
  switch (type.type_class) {
    case TypeClass::kInt:
    case TypeClass::kUInt:
      return fmt::format("an integer of {} bytes", type.size);
    case TypeClass::kFloat:
      return fmt::format("a float of {} bytes with {} exponent and {} mantissa bits", type.size,
                         type.exponent_bits, type.mantissa_bits);
    case TypeClass::kComplex:
      return fmt::format("a complex number of {} bytes", type.size);
    case TypeClass::kOpaque:
      return fmt::format("{} opaque bytes without an attribute `dtype` that names them", type.size);
    default:
      return type.description.empty() ? "a type without a counterpart" : type.description;
  }
}

}  // namespace tessera::h5
