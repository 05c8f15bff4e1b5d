#pragma once
// ChangeWatch: whether tensors whose memory a live state borrows have changed since it was saved.
// Three things show a change: a tensor's version counter; its memory being another one; and, since
// some writers bypass the counter (what data() returns has its own), the bits of kSamples elements
// spread over the tensor, the first and the last included. Smaller tensors are compared whole. Of
// tensors on devices, which cannot be read without waiting, the first two alone.
//
// Keeps the memory, and nothing else, alive. changed() may be called from another thread than the
// one that trains.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <string>

namespace tessera::fsdp {

class ChangeWatch {
 public:
  static constexpr std::int64_t kSamples = 64;

  /// Precondition: on a device, or dense without overlap.
  void add(std::string name, const at::Tensor& tensor);
  /// From now on.
  void restart();
  /// The first that changed; "": none.
  std::string changed() const;

 private:
  struct Watched {
    std::string name;
    at::Tensor tensor;
    c10::Storage storage;  // as it was when added
    const void* memory = nullptr;
    std::uint32_t version = 0;
    std::uint64_t samples = 0;
  };
  static void note(Watched& each);
  std::deque<Watched> watched_;
};

}  // namespace tessera::fsdp
