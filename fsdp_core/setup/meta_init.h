#pragma once
// Giving memory to tensors that were made on the meta device, in place: the TensorImpl that
// modules, optimizers and the user hold becomes a tensor of another device.
#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace tessera::fsdp {

/// `tensor` (meta, a parameter or a buffer) lies in `storage` from now on; sizes, strides, dtype
/// and requires_grad stay. The storage may hold fewer bytes (poison, or memory that is filled
/// later). `name` is for messages. Throws kInvalidArgument unless `tensor` is meta and nothing in
/// autograd knows it: an accumulator or a hook made before would stay with the meta device.
void adopt_storage(const at::Tensor& tensor, c10::Storage storage, std::string_view name);

/// A tensor that was given memory and has no values yet.
struct Blank {
  at::Tensor tensor;
  std::string name;
  std::int64_t version = 0;  // of its values, before anybody wrote any
};

/// With memory of its own on `device`, without values.
Blank materialise(const at::Tensor& tensor, at::Device device, std::string_view name);

/// On the meta device again, as if it had never been given memory.
void give_back(const Blank& blank);

/// How many of its elements nobody wrote. Exact for floating types; of integers and bools all or
/// none count.
std::int64_t unwritten(const Blank& blank);

}  // namespace tessera::fsdp
