#pragma once
// Casts between real element types, bit for bit PyTorch 2.13's .to(): round to nearest, ties to
// even (fp64 and integers reach floats below 32 bits through float32); integers wrap. Values that
// did not fit are counted. Where PyTorch's result is undefined (a float outside an integer's range)
// the value saturates, and NaN becomes 0.
#include <tessera/base/bytes.h>
#include <tessera/tensor/dtype.h>

#include <cstdint>
#include <span>

namespace tessera {

struct CastCounts {
  std::int64_t overflow_to_inf =
      0;  // finite values that became +-Inf, or NaN, saturated or wrapped where there is no Inf
  std::int64_t underflow_to_zero = 0;  // non-zero values that became zero
};

/// True for the types that cast_elements and to_double take: bool, integers and real floats of 8
/// bits and more.
bool is_castable(DType dtype);

/// Casts `source` (dense elements of `from`) to dense elements of `to`. Supported: bool, all
/// integers and all real floats of 8 bits and more (complex and quantized: kUnsupported).
CastCounts cast_elements(DType from, ByteView source, DType to, MutableBytes destination);

/// Widens to double (exact for every float type and integers up to 2^53).
void to_double(DType from, ByteView source, std::span<double> destination);

}  // namespace tessera
