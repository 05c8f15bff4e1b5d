#pragma once
// The one place where ranks' numbers meet on a CPU: element by element, in rank order, so that a
// result depends on nothing but the parts. 16-bit floats are summed in fp32 and rounded once.
#include <ATen/core/Tensor.h>
#include <tessera/fsdp/communicator.h>

#include <cstdint>
#include <span>

namespace tessera::fsdp {

/// out[i] = parts[0][i] (+) parts[1][i] (+) ..., `numel` elements of `dtype` each; kAverage divides
/// by the number of parts. `out` may be one of the parts. Throws kUnsupported: a dtype without
/// arithmetic.
void reduce_parts(void* out, std::span<const void* const> parts, std::int64_t numel,
                  at::ScalarType dtype, Reduce reduce);

}  // namespace tessera::fsdp
