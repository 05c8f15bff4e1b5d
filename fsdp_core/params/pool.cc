#include "fsdp_core/params/pool.h"

#include <array>
#include <mutex>
#include <new>

namespace tessera::fsdp {
namespace {

constexpr std::size_t kGrain = 64, kSizes = 16;  // larger ones are nobody's in every step

std::size_t size_of(std::size_t bytes) { return bytes == 0 ? 0 : (bytes - 1) / kGrain; }

class Pool {
 public:
  void* take(std::size_t size) {
    const std::lock_guard lock(mutex_);
    Free* first = free_[size];
    if (first != nullptr) free_[size] = first->next;
    return first;
  }
  void give(void* memory, std::size_t size) {
    const std::lock_guard lock(mutex_);
    free_[size] = new (memory) Free{free_[size]};
  }

 private:
  struct Free {
    Free* next;
  };
  std::mutex mutex_;
  std::array<Free*, kSizes> free_{};
};

/// Never destroyed: graphs of static lifetime may die at exit.
Pool& pool() {
  static auto* the = new Pool;
  return *the;
}

}  // namespace

void* pool_allocate(std::size_t bytes) {
  const std::size_t size = size_of(bytes);
  if (size >= kSizes) return ::operator new(bytes);
  void* memory = pool().take(size);
  return memory != nullptr ? memory : ::operator new((size + 1) * kGrain);
}

void pool_free(void* memory, std::size_t bytes) noexcept {
  if (memory == nullptr) return;
  const std::size_t size = size_of(bytes);
  if (size >= kSizes) return ::operator delete(memory);
  pool().give(memory, size);
}

}  // namespace tessera::fsdp
