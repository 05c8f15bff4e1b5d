#include <tessera/base/error.h>
#include <tessera/tensor/dtype.h>

#include <array>

namespace tessera {
namespace {

enum class Class : std::uint8_t { kBool, kInteger, kFloating, kComplex, kQuantized, kOpaqueBits };

struct Row {
  DType dtype;
  std::uint8_t bits;
  std::uint8_t swap_unit_bytes;
  Class kind;
  std::string_view torch_name;
  std::string_view safetensors_name;  // empty: cannot be stored there
};

using enum DType;

// In the order of the enum: dtype_row() indexes it.
constexpr std::array kRows = {
    Row{kBool, 8, 1, Class::kBool, "bool", "BOOL"},
    Row{kUInt8, 8, 1, Class::kInteger, "uint8", "U8"},
    Row{kInt8, 8, 1, Class::kInteger, "int8", "I8"},
    Row{kUInt16, 16, 2, Class::kInteger, "uint16", "U16"},
    Row{kInt16, 16, 2, Class::kInteger, "int16", "I16"},
    Row{kUInt32, 32, 4, Class::kInteger, "uint32", "U32"},
    Row{kInt32, 32, 4, Class::kInteger, "int32", "I32"},
    Row{kUInt64, 64, 8, Class::kInteger, "uint64", "U64"},
    Row{kInt64, 64, 8, Class::kInteger, "int64", "I64"},
    Row{kFloat16, 16, 2, Class::kFloating, "float16", "F16"},
    Row{kBFloat16, 16, 2, Class::kFloating, "bfloat16", "BF16"},
    Row{kFloat32, 32, 4, Class::kFloating, "float32", "F32"},
    Row{kFloat64, 64, 8, Class::kFloating, "float64", "F64"},
    Row{kComplex32, 32, 2, Class::kComplex, "complex32", ""},
    Row{kComplex64, 64, 4, Class::kComplex, "complex64", "C64"},
    Row{kComplex128, 128, 8, Class::kComplex, "complex128", ""},
    Row{kFloat8E4M3Fn, 8, 1, Class::kFloating, "float8_e4m3fn", "F8_E4M3"},
    Row{kFloat8E4M3FnUz, 8, 1, Class::kFloating, "float8_e4m3fnuz", "F8_E4M3FNUZ"},
    Row{kFloat8E5M2, 8, 1, Class::kFloating, "float8_e5m2", "F8_E5M2"},
    Row{kFloat8E5M2FnUz, 8, 1, Class::kFloating, "float8_e5m2fnuz", "F8_E5M2FNUZ"},
    Row{kFloat8E8M0Fnu, 8, 1, Class::kFloating, "float8_e8m0fnu", "F8_E8M0"},
    // safetensors' F4 counts single floats, two per byte: another shape, so no name for this one.
    Row{kFloat4E2M1FnX2, 8, 1, Class::kFloating, "float4_e2m1fn_x2", ""},
    Row{kFloat4, 4, 1, Class::kFloating, "f4", "F4"},
    Row{kFloat6E2M3, 6, 1, Class::kFloating, "f6_e2m3", "F6_E2M3"},
    Row{kFloat6E3M2, 6, 1, Class::kFloating, "f6_e3m2", "F6_E3M2"},
    Row{kQInt8, 8, 1, Class::kQuantized, "qint8", ""},
    Row{kQUInt8, 8, 1, Class::kQuantized, "quint8", ""},
    Row{kQInt32, 32, 4, Class::kQuantized, "qint32", ""},
    Row{kQUInt4x2, 8, 1, Class::kQuantized, "quint4x2", ""},
    Row{kQUInt2x4, 8, 1, Class::kQuantized, "quint2x4", ""},
    Row{kBits8, 8, 1, Class::kOpaqueBits, "bits8", ""},
    Row{kBits16, 16, 2, Class::kOpaqueBits, "bits16", ""},
    Row{kBits1x8, 8, 1, Class::kOpaqueBits, "bits1x8", ""},
    Row{kBits2x4, 8, 1, Class::kOpaqueBits, "bits2x4", ""},
    Row{kBits4x2, 8, 1, Class::kOpaqueBits, "bits4x2", ""},
    Row{kUInt1, 8, 1, Class::kInteger, "uint1", ""},
    Row{kUInt2, 8, 1, Class::kInteger, "uint2", ""},
    Row{kUInt3, 8, 1, Class::kInteger, "uint3", ""},
    Row{kUInt4, 8, 1, Class::kInteger, "uint4", ""},
    Row{kUInt5, 8, 1, Class::kInteger, "uint5", ""},
    Row{kUInt6, 8, 1, Class::kInteger, "uint6", ""},
    Row{kUInt7, 8, 1, Class::kInteger, "uint7", ""},
    Row{kInt1, 8, 1, Class::kInteger, "int1", ""},
    Row{kInt2, 8, 1, Class::kInteger, "int2", ""},
    Row{kInt3, 8, 1, Class::kInteger, "int3", ""},
    Row{kInt4, 8, 1, Class::kInteger, "int4", ""},
    Row{kInt5, 8, 1, Class::kInteger, "int5", ""},
    Row{kInt6, 8, 1, Class::kInteger, "int6", ""},
    Row{kInt7, 8, 1, Class::kInteger, "int7", ""},
};

constexpr bool rows_follow_the_enum() {
  for (std::size_t i = 0; i < kRows.size(); ++i)
    if (static_cast<std::size_t>(kRows[i].dtype) != i) return false;
  return kRows.back().dtype == kInt7;
}
static_assert(rows_follow_the_enum());

constexpr auto kAll = [] {
  std::array<DType, kRows.size()> all{};
  for (std::size_t i = 0; i < kRows.size(); ++i) all[i] = kRows[i].dtype;
  return all;
}();

const Row& dtype_row(DType dtype) {
  const auto index = static_cast<std::size_t>(dtype);
  TESSERA_CHECK(index < kRows.size());
  return kRows[index];
}

}  // namespace

std::span<const DType> all_dtypes() { return kAll; }

int bits(DType dtype) { return dtype_row(dtype).bits; }

int element_bytes(DType dtype) {
  const int width = bits(dtype);
  TESSERA_CHECK(width % 8 == 0);
  return width / 8;
}

bool is_floating(DType dtype) { return dtype_row(dtype).kind == Class::kFloating; }
bool is_complex(DType dtype) { return dtype_row(dtype).kind == Class::kComplex; }
bool is_quantized(DType dtype) { return dtype_row(dtype).kind == Class::kQuantized; }
bool is_integer(DType dtype) { return dtype_row(dtype).kind == Class::kInteger; }

std::string_view torch_name(DType dtype) { return dtype_row(dtype).torch_name; }

std::optional<DType> dtype_from_torch_name(std::string_view name) {
  for (const Row& row : kRows)
    if (row.torch_name == name) return row.dtype;
  return std::nullopt;
}

std::optional<std::string_view> safetensors_name(DType dtype) {
  const Row& row = dtype_row(dtype);
  if (row.safetensors_name.empty()) return std::nullopt;
  return row.safetensors_name;
}

std::optional<DType> dtype_from_safetensors_name(std::string_view name) {
  if (name.empty()) return std::nullopt;
  for (const Row& row : kRows)
    if (row.safetensors_name == name) return row.dtype;
  return std::nullopt;
}

int swap_unit_bytes(DType dtype) { return dtype_row(dtype).swap_unit_bytes; }

}  // namespace tessera
