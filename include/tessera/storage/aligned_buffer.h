#pragma once
// AlignedBuffer: memory whose address suits direct I/O (kIoAlignment), owned, reusable, never
// zeroed.
#include <tessera/base/bytes.h>

#include <cstddef>
#include <utility>

namespace tessera {

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(std::size_t size_bytes);  // throws kResourceExhausted
  ~AlignedBuffer();
  AlignedBuffer(AlignedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  /// Grows (contents lost) when smaller than `size_bytes`.
  void reserve(std::size_t size_bytes);

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace tessera
