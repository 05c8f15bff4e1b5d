#pragma once
// Which tensors are cast to what (ops/transform.h).
#include <tessera/ops/transform.h>

namespace tessera {

/// Sets StoredTensor::cast_from and spec.dtype. One AppliedTransformation per pair of types.
void apply_dtypes(Manifest& manifest, const Transformations& asked, TransformOutcome& out);

}  // namespace tessera
