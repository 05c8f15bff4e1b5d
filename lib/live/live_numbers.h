#pragma once
// Single numbers that are a tensor of one element on one side and a plain value on the other: steps
// of optimizers, above all.
#include <tessera/reshard/tensor_reader.h>
#include <tessera/state/manifest.h>
#include <tessera/tensor/dtype.h>

namespace tessera {

/// The element of a stored tensor of one element: a boolean, an integer or a real.
Value read_number(const TensorReader& reader, const Manifest& manifest, std::uint32_t tensor);

/// `value` (boolean, integer or real) as one element. `exact`: throws kOutOfRange for a whole
/// number that `dtype` does not hold (above 2^24 in float32), and for any that it has no room for,
/// naming both. Throws kOutOfRange for a part of one where `dtype` is for whole numbers,
/// kUnsupported for a type that is no number's.
Bytes number_bytes(const Value& value, DType dtype, bool exact);

}  // namespace tessera
