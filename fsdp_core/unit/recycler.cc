#include "fsdp_core/unit/recycler.h"

#include <c10/core/CPUAllocator.h>
#include <tessera/fsdp/training.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

namespace tessera::fsdp {
namespace {

class Recycler final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) return {nullptr, c10::Device(c10::kCPU)};
    std::lock_guard lock(mutex_);
    auto block = std::make_unique<Block>();
    const auto found = best_fit(bytes);
    if (found != free_.end()) {
      counts_.free -= (*found)->bytes;
      block = std::move(*found);
      free_.erase(found);
    } else {
      make_room(std::max(most_in_use_, counts_.in_use + bytes) - bytes);
      block->owner = this;
      block->bytes = bytes;
      block->memory = c10::GetCPUAllocator()->allocate(bytes);
      counts_.allocations += 1;
    }
    counts_.in_use += block->bytes;
    most_in_use_ = std::max(most_in_use_, counts_.in_use);
    most_this_step_ = std::max(most_this_step_, counts_.in_use);
    void* memory = block->memory.get();
    return {memory, block.release(), &give_back, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }  // the context is no pointer
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }

  void end_step() {
    std::lock_guard lock(mutex_);
    most_in_use_ = most_this_step_;
    most_this_step_ = counts_.in_use;
    make_room(most_in_use_);
  }
  void release() {
    std::lock_guard lock(mutex_);
    most_in_use_ = most_this_step_ = counts_.in_use;
    make_room(counts_.in_use);
  }
  RecyclerCounts counts() {
    std::lock_guard lock(mutex_);
    return counts_;
  }

 private:
  struct Block {
    Recycler* owner = nullptr;
    std::size_t bytes = 0;
    c10::DataPtr memory;
  };
  using Blocks = std::vector<std::unique_ptr<Block>>;

  /// May be larger by little: rows padded otherwise, not another unit's.
  Blocks::iterator best_fit(std::size_t bytes) {
    auto best = free_.end();
    for (auto at = free_.begin(); at != free_.end(); ++at)
      if ((*at)->bytes >= bytes && (*at)->bytes <= bytes + bytes / 64 &&
          (best == free_.end() || (*at)->bytes < (*best)->bytes))
        best = at;
    return best;
  }
  /// Gives free blocks back, those that lay longest first, until all held fits into `limit`.
  void make_room(std::size_t limit) {
    auto keep = free_.begin();
    while (keep != free_.end() && counts_.in_use + counts_.free > limit)
      counts_.free -= (*keep++)->bytes;
    free_.erase(free_.begin(), keep);
  }
  static void give_back(void* context) {
    std::unique_ptr<Block> block(static_cast<Block*>(context));
    Recycler& owner = *block->owner;
    std::lock_guard lock(owner.mutex_);
    owner.counts_.in_use -= block->bytes;
    owner.counts_.free += block->bytes;
    owner.free_.push_back(std::move(block));
  }

  std::mutex mutex_;
  Blocks free_;  // in the order they came back
  RecyclerCounts counts_;
  std::size_t most_in_use_ = 0, most_this_step_ = 0;
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

void end_recycler_step() { recycler().end_step(); }

void release_cached_memory() { recycler().release(); }

}  // namespace tessera::fsdp
