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

namespace {

/// The value of every byte that nobody wrote: in floating types no number that a model would hold.
constexpr int kBlank = 0xff;

std::int64_t bytes_of(const at::Tensor& tensor) {
  return static_cast<std::int64_t>(
      at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize(),
                                       static_cast<std::size_t>(tensor.storage_offset())));
}

at::ScalarType integer_of(std::size_t itemsize) {
  switch (itemsize) {
    case 1:
      return at::kChar;
    case 2:
      return at::kShort;
    case 4:
      return at::kInt;
    default:
      return at::kLong;
  }
}

}  // namespace

Blank materialise(const at::Tensor& tensor, at::Device device, std::string_view name) {
  const at::Tensor memory =
      at::full({bytes_of(tensor)}, kBlank, at::TensorOptions().dtype(at::kByte).device(device));
  adopt_storage(tensor, memory.storage(), name);
  return {tensor, std::string(name), tensor._version()};
}

void give_back(const Blank& blank) {
  const at::Tensor nothing =
      at::empty({bytes_of(blank.tensor)}, at::TensorOptions().dtype(at::kByte).device(at::kMeta));
  c10::TensorImpl* impl = blank.tensor.unsafeGetTensorImpl();
  impl->_change_backend_component_keys(at::kMeta);
  impl->set_storage_keep_dtype(nothing.storage());
}

std::int64_t unwritten(const Blank& blank) {
  if (blank.tensor.numel() == 0) return 0;
  at::Tensor values = blank.tensor.detach();
  if (values.is_complex()) values = at::view_as_real(values);
  at::Tensor same = values.view(integer_of(values.itemsize())) == -1;
  if (blank.tensor.is_complex()) same = same.all(-1);
  if (values.is_floating_point()) return same.sum().item<std::int64_t>();
  // An integer may be -1: then all are, and somebody wrote them through LibTorch.
  const bool all = same.all().item<bool>() && blank.tensor._version() == blank.version;
  return all ? blank.tensor.numel() : 0;
}

}  // namespace tessera::fsdp
