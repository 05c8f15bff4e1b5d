#pragma once
// DType: the element types of every ecosystem that the toolkit reads. Not at::ScalarType: the
// toolkit does not link LibTorch, and no release of it names every float8 type.
//
// Names: PyTorch 2.13 without "torch." (`float8_e4m3fn`) are the ones commands print; safetensors
// 0.8 names (`F8_E4M3`) live in the header of its files. Types without a name in an ecosystem
// cannot be stored there: the writer says so before any byte is written.
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace tessera {

// clang-format off
enum class DType : std::uint8_t {
  kBool,
  kUInt8, kInt8, kUInt16, kInt16, kUInt32, kInt32, kUInt64, kInt64,
  kFloat16, kBFloat16, kFloat32, kFloat64,
  kComplex32, kComplex64, kComplex128,
  kFloat8E4M3Fn, kFloat8E4M3FnUz, kFloat8E5M2, kFloat8E5M2FnUz, kFloat8E8M0Fnu,
  kFloat4E2M1FnX2,  // two 4-bit floats per byte; torch counts bytes as elements
  // Sub-byte types that only safetensors names (elements of 4 and 6 bits, packed).
  kFloat4, kFloat6E2M3, kFloat6E3M2,
  // Quantized: the integer representation of PyTorch's q-types.
  kQInt8, kQUInt8, kQInt32, kQUInt4x2, kQUInt2x4,
  // PyTorch's opaque bit types and sub-byte integer shells.
  kBits8, kBits16, kBits1x8, kBits2x4, kBits4x2,
  kUInt1, kUInt2, kUInt3, kUInt4, kUInt5, kUInt6, kUInt7,
  kInt1, kInt2, kInt3, kInt4, kInt5, kInt6, kInt7,
};
// clang-format on

/// Whole range of the enum, in declaration order.
std::span<const DType> all_dtypes();

/// Bits one element occupies in storage (8 for the packed x2, x4 shells, 4 for kFloat4, ...).
int bits(DType dtype);
/// Bytes per element. Precondition: bits() is a multiple of 8.
int element_bytes(DType dtype);
/// True when elements do not start at byte borders; such tensors are only ever moved whole.
inline bool is_sub_byte(DType dtype) { return bits(dtype) % 8 != 0; }

bool is_floating(DType dtype);  // real floating point of any width
bool is_complex(DType dtype);
bool is_quantized(DType dtype);
bool is_integer(DType dtype);  // bool excluded

/// PyTorch's name ("bfloat16"); kFloat4 and kFloat6* print their safetensors name in lower case.
std::string_view torch_name(DType dtype);
std::optional<DType> dtype_from_torch_name(std::string_view name);
/// safetensors 0.8 name ("BF16"), or nullopt.
std::optional<std::string_view> safetensors_name(DType dtype);
std::optional<DType> dtype_from_safetensors_name(std::string_view name);

/// Bytes per unit that a byte-order swap reverses: complex64 is 4 (two floats), int8 is 1.
int swap_unit_bytes(DType dtype);

}  // namespace tessera
