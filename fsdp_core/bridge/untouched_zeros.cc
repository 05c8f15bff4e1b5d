#include "fsdp_core/bridge/untouched_zeros.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/alignment.h>

#include <cstdlib>
#include <memory>

namespace tessera::fsdp {

at::Tensor untouched_zeros_like(const at::Tensor& like) {
  const bool plain = like.device().is_cpu() && like.layout() == at::kStrided &&
                     like.is_contiguous() && !like.is_conj() && !like.is_neg();
  const std::size_t bytes = plain ? like.nbytes() : 0;
  void* memory = bytes > 0 ? std::calloc(bytes + c10::gAlignment, 1) : nullptr;
  if (memory == nullptr) return at::zeros_like(like);
  void* data = memory;
  std::size_t room = bytes + c10::gAlignment;
  std::align(c10::gAlignment, bytes, data, room);
  c10::Storage storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes,
      c10::DataPtr(data, memory, &std::free, c10::DeviceType::CPU), c10::GetCPUAllocator(),
      /*resizable=*/true));
  return at::empty({0}, like.options().requires_grad(false)).set_(storage, 0, like.sizes());
}

}  // namespace tessera::fsdp
