#include "fsdp_core/setup/meta_init.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <torch/csrc/autograd/variable.h>

namespace tessera::fsdp {

namespace {

void check_unknown_to_autograd(const at::Tensor& tensor, std::string_view name) {
  namespace impl = torch::autograd::impl;
  if (impl::get_autograd_meta(tensor) == nullptr) return;
  const bool hooked = !impl::hooks(tensor).empty() || impl::post_acc_grad_hooks(tensor) != nullptr;
  if (tensor.grad_fn() || tensor.is_view() || hooked || impl::try_get_grad_accumulator(tensor))
    fail(
        Code::kInvalidArgument,
        fmt::format(
            "parameter \"{}\" was used in autograd (a forward, or a hook) while on the meta device",
            name),
        "shard the model before its first forward, and register hooks after that");
}

}  // namespace

void adopt_storage(const at::Tensor& tensor, c10::Storage storage, std::string_view name) {
  if (!tensor.is_meta())
    fail(Code::kInvalidArgument,
         fmt::format("\"{}\" is not on the meta device but on {}", name, tensor.device().str()));
  check_unknown_to_autograd(tensor, name);
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  impl->_change_backend_component_keys(storage.device());
  impl->set_storage_keep_dtype(std::move(storage));
}

void materialise(const at::Tensor& tensor, at::Device device, std::string_view name) {
  const std::size_t bytes =
      at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize(),
                                       static_cast<std::size_t>(tensor.storage_offset()));
  const at::Tensor memory = at::empty({static_cast<std::int64_t>(bytes)},
                                      at::TensorOptions().dtype(at::kByte).device(device));
  adopt_storage(tensor, memory.storage(), name);
}

}  // namespace tessera::fsdp
