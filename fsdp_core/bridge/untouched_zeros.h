#pragma once
// Zeros whose memory nobody has touched yet.
#include <ATen/ATen.h>

namespace tessera::fsdp {

/// Like at::zeros_like(), of the same shape. Dense CPU memory comes as zeros from the kernel and is
/// given pages when it is first written to: for tensors that are filled next. (at::zeros_like
/// writes zeros over zeros.)
at::Tensor untouched_zeros_like(const at::Tensor& like);

}  // namespace tessera::fsdp
