#pragma once
// What tensor_over and shard_over share: a dense tensor over memory that is there already.
#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>

#include "fsdp_core/params/outside_inference.h"

namespace tessera::fsdp {

/// As tensor_over, the tensor an `Impl`.
template <class Impl>
at::Tensor tensor_over_storage(const c10::Storage& storage, at::ScalarType dtype,
                               std::int64_t offset, at::IntArrayRef sizes) {
  const OutsideInference outside;
  const auto key = c10::computeDispatchKey(dtype, c10::kStrided, storage.device());
  at::Tensor tensor = at::detail::make_tensor<Impl>(c10::Storage(storage), c10::DispatchKeySet(key),
                                                    c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_storage_offset(offset);
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return tensor;
}

}  // namespace tessera::fsdp
