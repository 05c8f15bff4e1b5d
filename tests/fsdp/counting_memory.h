#pragma once
// LibTorch's memory on CPUs, counted: what is held now, the most there was, and how often some was
// asked for.
#include <c10/core/CPUAllocator.h>
#include <tessera/fsdp/training.h>

#include <atomic>
#include <cstring>

namespace tessera::fsdp::test {

inline std::atomic<std::int64_t> live = 0, peak = 0, asks = 0;

/// Memory that units hold free for reuse counts as held.
class Counting final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    c10::DataPtr inner = c10::GetDefaultCPUAllocator()->allocate(bytes);
    void* memory = inner.get();
    ++asks;
    auto* block = new Block{std::move(inner), static_cast<std::int64_t>(bytes)};
    const std::int64_t now = live += block->bytes;
    std::int64_t most = peak;
    while (now > most && !peak.compare_exchange_weak(most, now)) {
    }
    return {memory, block, &drop, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }

 private:
  struct Block {
    c10::DataPtr held;
    std::int64_t bytes;
  };
  static void drop(void* context) {
    auto* block = static_cast<Block*>(context);
    live -= block->bytes;
    delete block;
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
