#pragma once
// The part of the memory limit that compressed items are decoded in, shared by all workers.
//
// A worker takes what decoding an item needs, keeps what is decoded, and gives it back when it
// moves on. Who has to wait gives up what it keeps first, so that nobody waits for somebody who
// waits. Thread-safe.
#include <tessera/base/progress.h>
#include <tessera/state/manifest.h>

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace tessera {

/// The part of a limit on staged bytes, in bytes, that compressed items may take if there are any.
/// The rest stages what is read and written.
inline std::uint64_t coded_part(std::uint64_t memory_limit_bytes) {
  return memory_limit_bytes - memory_limit_bytes / 4;
}

class CodedGate {
 public:
  explicit CodedGate(std::uint64_t total_bytes) : total_(total_bytes), free_(total_bytes) {}

  std::uint64_t total_bytes() const { return total_; }
  bool try_take(std::uint64_t bytes);
  /// Waits. Precondition: bytes <= total_bytes(); the caller holds nothing.
  void take(std::uint64_t bytes, const CancelToken* cancel);
  void give(std::uint64_t bytes);

 private:
  const std::uint64_t total_;
  std::mutex mutex_;
  std::condition_variable given_;
  std::uint64_t free_;
};

/// Memory, in bytes, that one item takes while it is decoded, as far as the manifest shows.
struct CodedSize {
  std::uint64_t stored = 0;   // bytes in the file
  std::uint64_t largest = 0;  // of what the codecs hand on
  std::uint64_t decoded = 0;  // what is left at the end: more than its chunk where that is a part
  bool several = false;       // codecs

  /// What a codec takes and what it makes are there together.
  std::uint64_t at_once() const {
    return largest + (several && decoded > stored ? decoded : stored);
  }
};
CodedSize coded_size(const Manifest& manifest, const StoredTensor& tensor, std::uint64_t chunk);

}  // namespace tessera
