#pragma once
// float32 to bfloat16, as every conversion to it does: rounded to nearest even, a NaN kept quiet. In
// vectors of 32 bytes where the CPU has them, to the same bits and counts.
#include <tessera/base/bytes.h>
#include <tessera/tensor/cast.h>

#include <cstddef>

namespace tessera {

/// `values`: of float32, little-endian; `destination`: 2 bytes for each.
void store_bfloat16(ByteView values, std::byte* destination, CastCounts& counts);

}  // namespace tessera
