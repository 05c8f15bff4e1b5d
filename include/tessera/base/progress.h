#pragma once
// Progress and cancellation of long work. Workers raise counters that another thread reads, and
// stop soon after cancel(). Thread-safe.
#include <tessera/base/error.h>

#include <atomic>
#include <cstdint>
#include <string>

namespace tessera {

/// Counters that workers raise and a reporter thread reads.
struct Progress {
  std::atomic<std::uint64_t> total_bytes{0};
  std::atomic<std::uint64_t> done_bytes{0};
  std::atomic<std::uint64_t> resumed_bytes{0};  // part of done_bytes found finished by --resume
};

/// Set from a signal handler or another thread; polled between blocks.
class CancelToken {
 public:
  void cancel() noexcept { cancelled_.store(true, std::memory_order_relaxed); }
  bool cancelled() const noexcept { return cancelled_.load(std::memory_order_relaxed); }
  /// Throws kCancelled once cancel() was called.
  void check() const {
    if (cancelled()) fail(Code::kCancelled, "stopped on request");
  }

 private:
  std::atomic<bool> cancelled_{false};
};

}  // namespace tessera
