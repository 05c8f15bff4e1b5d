#pragma once
// LibTorch's memory on CPUs, counted: what is held now, the most there was, and how often some was
// asked for.
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <tessera/fsdp/training.h>

#include <atomic>
#include <cstring>

namespace tessera::fsdp::test {

inline std::atomic<std::int64_t> live = 0, peak = 0, asks = 0;

/// Memory that units hold free for reuse counts as held.
class Counting final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    auto* data = static_cast<std::byte*>(c10::alloc_cpu(bytes + kHeader)) + kHeader;
    std::memcpy(data - kHeader, &bytes, sizeof bytes);
    ++asks;
    const std::int64_t now = live += static_cast<std::int64_t>(bytes);
    std::int64_t most = peak;
    while (now > most && !peak.compare_exchange_weak(most, now)) {
    }
    return {data, data, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }

 private:
  static constexpr std::size_t kHeader = 64;  // keeps the alignment; begins with the size
  static void release(void* data) {
    std::byte* block = static_cast<std::byte*>(data) - kHeader;
    std::size_t bytes = 0;
    std::memcpy(&bytes, block, sizeof bytes);
    live -= static_cast<std::int64_t>(bytes);
    c10::free_cpu(block);
  }
};

/// Counts while it lives.
struct CountMemory {
  CountMemory() : before(c10::GetCPUAllocator()) {
    release_cached_memory();
    live = peak = asks = 0;
    c10::SetCPUAllocator(&counting);
  }
  ~CountMemory() { c10::SetCPUAllocator(before); }
  c10::Allocator* before;
  static inline Counting counting;
};

}  // namespace tessera::fsdp::test
