#include "fsdp_core/unit/recycler.h"

#include <c10/core/CPUAllocator.h>
#include <tessera/fsdp/training.h>

#include <cstring>
#include <map>
#include <mutex>

namespace tessera::fsdp {
namespace {

class Recycler final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) return {nullptr, c10::Device(c10::kCPU)};
    std::lock_guard lock(mutex_);
    // A block may be larger than asked for by little: rows padded otherwise, not another unit's.
    auto found = free_.lower_bound(bytes);
    if (found == free_.end() || found->first > bytes + bytes / 64) {
      clear();
      counts_.allocations += 1;
      found = free_.emplace(bytes, c10::GetDefaultCPUAllocator()->allocate(bytes));
    } else {
      counts_.free -= found->first;
    }
    auto* block = new Block{this, free_.extract(found)};
    counts_.in_use += block->held.key();
    return {block->held.mapped().get(), block, &give_back, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }  // the context is no pointer
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }

  void release() {
    std::lock_guard lock(mutex_);
    clear();
  }
  RecyclerCounts counts() {
    std::lock_guard lock(mutex_);
    return counts_;
  }

 private:
  using Blocks = std::multimap<std::size_t, c10::DataPtr>;
  struct Block {
    Recycler* owner;
    Blocks::node_type held;  // goes back without an allocation
  };

  static void give_back(void* context) {
    auto* block = static_cast<Block*>(context);
    {
      std::lock_guard lock(block->owner->mutex_);
      block->owner->counts_.in_use -= block->held.key();
      block->owner->counts_.free += block->held.key();
      block->owner->free_.insert(std::move(block->held));
    }
    delete block;
  }
  void clear() {
    free_.clear();
    counts_.free = 0;
  }

  std::mutex mutex_;
  Blocks free_;
  RecyclerCounts counts_;
};

/// Never destroyed: tensors of static lifetime may give memory back at exit.
Recycler& recycler() {
  static auto* the = new Recycler;
  return *the;
}

}  // namespace

c10::Allocator* buffer_allocator(c10::DeviceType device) {
  return device == c10::kCPU ? &recycler() : c10::GetAllocator(device);
}

RecyclerCounts recycler_counts() { return recycler().counts(); }

void release_cached_memory() { recycler().release(); }

}  // namespace tessera::fsdp
