#include "fsdp_core/params/shard_tensor.h"

#include <ATen/ATen.h>

#include <atomic>

#include "fsdp_core/params/tensor_over_storage.h"

namespace tessera::fsdp {
namespace {

struct ShardImpl final : c10::TensorImpl {
  using c10::TensorImpl::TensorImpl;

  /// What data() and variable_data() are made by.
  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(
      const c10::VariableVersion& version, bool metadata_may_change) const override {
    handed_out.fetch_add(1, std::memory_order_relaxed);
    return TensorImpl::shallow_copy_and_detach(version, metadata_may_change);
  }
  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(
      c10::VariableVersion&& version, bool metadata_may_change) const override {
    handed_out.fetch_add(1, std::memory_order_relaxed);
    return TensorImpl::shallow_copy_and_detach(std::move(version), metadata_may_change);
  }

  mutable std::atomic<std::uint64_t> handed_out = 0;
};

}  // namespace

at::Tensor shard_over(const c10::Storage& storage, at::ScalarType dtype, std::int64_t offset,
                      at::IntArrayRef sizes) {
  return tensor_over_storage<ShardImpl>(storage, dtype, offset, sizes);
}

std::uint64_t changes_of(const at::Tensor& shard) {
  const auto& impl = static_cast<const ShardImpl&>(*shard.unsafeGetTensorImpl());
  return impl.version_counter().current_version() + impl.handed_out.load(std::memory_order_relaxed);
}

}  // namespace tessera::fsdp
