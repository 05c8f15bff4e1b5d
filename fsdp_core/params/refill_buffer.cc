#include "fsdp_core/params/refill_buffer.h"

#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StorageImpl.h>

#include <cstring>

#include "fsdp_core/params/pool.h"
#include "fsdp_core/params/recycler.h"
#include "fsdp_core/params/tensor_over_storage.h"

namespace tessera::fsdp {
namespace {

// As their bases, made anew in every step.
struct PooledStorage final : c10::StorageImpl, Pooled {
  using c10::StorageImpl::StorageImpl;
};
struct PooledTensor final : c10::TensorImpl, Pooled {
  using c10::TensorImpl::TensorImpl;
};

c10::Storage empty_storage(std::size_t nbytes, c10::Device device) {
  return c10::Storage(c10::make_intrusive<PooledStorage>(
      c10::StorageImpl::use_byte_size_t(), nbytes, c10::DataPtr(nullptr, device),
      buffer_allocator(device.type()), /*resizable=*/false));
}

}  // namespace

at::Tensor tensor_over(const c10::Storage& storage, at::ScalarType dtype, std::int64_t offset,
                       at::IntArrayRef sizes) {
  return tensor_over_storage<PooledTensor>(storage, dtype, offset, sizes);
}

at::Tensor new_tensor(std::int64_t numel, at::ScalarType dtype, c10::Device device) {
  RefillBuffer buffer(numel, dtype, device);
  buffer.allocate();
  return buffer.take();
}

void copy_into(const at::Tensor& to, const at::Tensor& from) {
  if (to.scalar_type() == from.scalar_type() && to.is_cpu() && from.is_cpu()) {
    if (from.nbytes() > 0) std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes());
  } else {
    to.copy_(from, /*non_blocking=*/to.device() != from.device());
  }
}

RefillBuffer::RefillBuffer(std::int64_t numel, at::ScalarType dtype, c10::Device device)
    : tensor_(tensor_over(empty_storage(0, device), dtype, 0, {numel})),
      nbytes_(static_cast<std::size_t>(numel) * c10::elementSize(dtype)) {}

void RefillBuffer::allocate() {
  if (allocated_) return;
  c10::StorageImpl* storage = tensor_.storage().unsafeGetStorageImpl();
  // Allocators of devices give memory of the one that is current.
  c10::OptionalDeviceGuard guard;
  if (!storage->device().is_cpu()) guard.reset_device(storage->device());
  storage->set_data_ptr_noswap(storage->allocator()->allocate(nbytes_));
  storage->set_nbytes(nbytes_);
  allocated_ = true;
}

void RefillBuffer::release() {
  if (!allocated_) return;
  c10::StorageImpl* storage = tensor_.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(c10::DataPtr(nullptr, storage->device()));
  storage->set_nbytes(0);
  allocated_ = false;
}

at::Tensor RefillBuffer::take() {
  c10::StorageImpl* storage = tensor_.storage().unsafeGetStorageImpl();
  c10::Storage given = empty_storage(nbytes_, storage->device());
  given.unsafeGetStorageImpl()->set_data_ptr_noswap(
      storage->set_data_ptr(c10::DataPtr(nullptr, storage->device())));
  storage->set_nbytes(0);
  allocated_ = false;
  return tensor_over(given, tensor_.scalar_type(), 0, tensor_.sizes());
}

c10::Storage poison_storage(std::size_t nbytes, c10::Device device, const std::string& message) {
  c10::Storage storage = empty_storage(nbytes, device);
  storage.unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(message);
  return storage;
}

}  // namespace tessera::fsdp
