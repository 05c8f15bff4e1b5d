#pragma once
// A box of a whole tensor, seen where it lies.
#include <ATen/core/Tensor.h>
#include <tessera/tensor/box.h>

namespace tessera::fsdp {

inline at::Tensor view_of(at::Tensor whole, const Box& box) {
  for (int d = 0; d < box.rank(); ++d) whole = whole.narrow(d, box.begin(d), box.shape[d]);
  return whole;
}

}  // namespace tessera::fsdp
