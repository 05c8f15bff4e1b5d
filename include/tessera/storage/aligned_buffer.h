#pragma once
// AlignedBuffer: memory whose address suits direct I/O (kIoAlignment), owned, reusable, never
// zeroed.
#include <tessera/base/bytes.h>

#include <cstddef>
#include <memory>
#include <utility>

namespace tessera {

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(std::size_t size_bytes);  // throws kResourceExhausted
  AlignedBuffer(AlignedBuffer&& other) noexcept
      : data_(std::move(other.data_)), size_(std::exchange(other.size_, 0)) {}
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    data_ = std::move(other.data_);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }
  std::byte* data() { return data_.get(); }
  const std::byte* data() const { return data_.get(); }
  std::size_t size() const { return size_; }
  /// Grows (contents lost) when smaller than `size_bytes`.
  void reserve(std::size_t size_bytes);

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte, Free> data_;
  std::size_t size_ = 0;
};

}  // namespace tessera
