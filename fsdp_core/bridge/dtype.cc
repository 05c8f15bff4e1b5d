#include "fsdp_core/bridge/dtype.h"

#include <fmt/format.h>
#include <tessera/base/error.h>

#include <utility>

namespace tessera::fsdp {
namespace {

using at::ScalarType;

constexpr std::pair<ScalarType, DType> kTypes[] = {
    {ScalarType::Bool, DType::kBool},
    {ScalarType::Byte, DType::kUInt8},
    {ScalarType::Char, DType::kInt8},
    {ScalarType::UInt16, DType::kUInt16},
    {ScalarType::Short, DType::kInt16},
    {ScalarType::UInt32, DType::kUInt32},
    {ScalarType::Int, DType::kInt32},
    {ScalarType::UInt64, DType::kUInt64},
    {ScalarType::Long, DType::kInt64},
    {ScalarType::Half, DType::kFloat16},
    {ScalarType::BFloat16, DType::kBFloat16},
    {ScalarType::Float, DType::kFloat32},
    {ScalarType::Double, DType::kFloat64},
    {ScalarType::ComplexHalf, DType::kComplex32},
    {ScalarType::ComplexFloat, DType::kComplex64},
    {ScalarType::ComplexDouble, DType::kComplex128},
    {ScalarType::Float8_e4m3fn, DType::kFloat8E4M3Fn},
    {ScalarType::Float8_e4m3fnuz, DType::kFloat8E4M3FnUz},
    {ScalarType::Float8_e5m2, DType::kFloat8E5M2},
    {ScalarType::Float8_e5m2fnuz, DType::kFloat8E5M2FnUz},
    {ScalarType::Float8_e8m0fnu, DType::kFloat8E8M0Fnu},
    {ScalarType::Float4_e2m1fn_x2, DType::kFloat4E2M1FnX2},
};

}  // namespace

DType dtype_of(at::ScalarType type) {
  for (const auto& [torch_type, ours] : kTypes)
    if (torch_type == type) return ours;
  fail(Code::kUnsupported,
       fmt::format("a tensor of type {} cannot be part of a state dict", c10::toString(type)));
}

at::ScalarType scalar_type_of(DType dtype) {
  for (const auto& [torch_type, ours] : kTypes)
    if (ours == dtype) return torch_type;
  fail(Code::kUnsupported, fmt::format("LibTorch has no tensors of type {}", torch_name(dtype)));
}

}  // namespace tessera::fsdp
