#pragma once
// Giving memory to tensors that were made on the meta device, in place: the TensorImpl that
// modules, optimizers and the user hold becomes a tensor of another device.
#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <string_view>

namespace tessera::fsdp {

/// `tensor` (meta, a parameter or a buffer) lies in `storage` from now on; sizes, strides, dtype
/// and requires_grad stay. The storage may hold fewer bytes (poison, or memory that is filled
/// later). `name` is for messages. Throws kInvalidArgument unless `tensor` is meta and nothing in
/// autograd knows it: an accumulator or a hook made before would stay with the meta device.
void adopt_storage(const at::Tensor& tensor, c10::Storage storage, std::string_view name);

/// With memory of its own on `device`, uninitialised.
void materialise(const at::Tensor& tensor, at::Device device, std::string_view name);

}  // namespace tessera::fsdp
