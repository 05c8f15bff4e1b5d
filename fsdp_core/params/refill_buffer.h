#pragma once
// RefillBuffer: memory that is freed and filled again for ever behind one StorageImpl. Autograd may
// have saved tensors over that storage, so its identity stays; only its bytes come and go.
//
// tensor() has a version counter of its own: filling through it is not seen by autograd as a
// change.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace tessera::fsdp {

/// A contiguous tensor over `storage` from element `offset`: no view of anything, a version counter
/// of its own.
at::Tensor tensor_over(const c10::Storage& storage, at::ScalarType dtype, std::int64_t offset,
                       at::IntArrayRef sizes);

/// 1-D, contents undefined, memory from where refill buffers have theirs.
at::Tensor new_tensor(std::int64_t numel, at::ScalarType dtype, c10::Device device);

/// copy_, which on the CPU between tensors of one dtype and memory layout is one memcpy.
void copy_into(const at::Tensor& to, const at::Tensor& from);

class RefillBuffer {
 public:
  RefillBuffer() = default;
  /// Starts without memory.
  RefillBuffer(std::int64_t numel, at::ScalarType dtype, c10::Device device);

  /// 1-D; only touched while allocated().
  const at::Tensor& tensor() const { return tensor_; }
  const c10::Storage& storage() const { return tensor_.storage(); }
  bool allocated() const { return allocated_; }
  std::size_t nbytes() const { return nbytes_; }

  void allocate();  // contents undefined; nothing when allocated
  void release();   // nothing when released
  /// Gives the memory away as a tensor of its own, and has none from then on. Only while
  /// allocated().
  at::Tensor take();

 private:
  at::Tensor tensor_;
  std::size_t nbytes_ = 0;
  bool allocated_ = false;
};

/// A storage without memory whose every use raises `message`.
c10::Storage poison_storage(std::size_t nbytes, c10::Device device, const std::string& message);

}  // namespace tessera::fsdp
