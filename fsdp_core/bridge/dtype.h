#pragma once
// at::ScalarType <-> tessera::DType. Pure.
#include <c10/core/ScalarType.h>
#include <tessera/tensor/dtype.h>

namespace tessera::fsdp {

/// Throws kUnsupported, naming the type, for what the toolkit does not know.
DType dtype_of(at::ScalarType type);
/// Throws kUnsupported, naming the type, for what this LibTorch does not know.
at::ScalarType scalar_type_of(DType dtype);

}  // namespace tessera::fsdp
