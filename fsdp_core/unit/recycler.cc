#include "fsdp_core/unit/recycler.h"

#include <c10/core/CPUAllocator.h>
#include <tessera/fsdp/training.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "fsdp_core/unit/arena_plan.h"

namespace tessera::fsdp {
namespace {

/// What this step allocates and frees, in order.
class StepTrace {
 public:
  /// Its index. Only so many are kept: who evaluates for ever has no step.
  std::size_t allocated(std::size_t bytes) {
    if (step_.size() == kMostLifetimes) return kMostLifetimes;
    step_.push_back({bytes, now_++});
    return step_.size() - 1;
  }
  void freed(std::size_t index) {
    if (index < step_.size()) step_[index].end = now_++;
  }
  std::uint64_t number() const { return number_; }

  /// The step has ended, and is the last one. True: it was like the one before.
  bool end() {
    std::swap(step_, last_);
    const bool repeated = step_ == last_ && last_.size() < kMostLifetimes;
    step_.clear();
    now_ = 0;
    ++number_;
    return repeated;
  }
  const std::vector<Lifetime>& last() const { return last_; }

 private:
  std::vector<Lifetime> step_, last_;
  std::uint32_t now_ = 0;
  std::uint64_t number_ = 0;
};

/// One block in which allocations have places.
struct Arena {
  struct Range {
    std::size_t begin, end;
  };
  c10::DataPtr memory;
  std::size_t bytes = 0;
  std::vector<Range> taken;  // in order

  bool take(std::size_t begin, std::size_t count) {
    const auto next = std::ranges::lower_bound(taken, begin, {}, &Range::begin);
    if (begin + count > bytes || (next != taken.end() && next->begin < begin + count) ||
        (next != taken.begin() && std::prev(next)->end > begin))
      return false;
    taken.insert(next, {begin, begin + count});
    return true;
  }
  /// The first gap that is large enough.
  std::size_t gap(std::size_t count) const {
    std::size_t at = 0;
    for (const Range& range : taken) {
      if (range.begin >= at + count) break;
      at = (range.end + 63) / 64 * 64;
    }
    return at + count <= bytes ? at : ArenaPlan::kNowhere;
  }
  void give(std::size_t begin) {
    taken.erase(std::ranges::lower_bound(taken, begin, {}, &Range::begin));
  }
};

class Recycler final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) return {nullptr, c10::Device(c10::kCPU)};
    std::lock_guard lock(mutex_);
    const std::size_t index = trace_.allocated(bytes);
    std::unique_ptr<Block> block = in_arena(bytes, index);
    if (!block) block = alone(bytes);
    block->step = trace_.number();
    block->index = index;
    counts_.in_use += block->bytes;
    most_in_use_ = std::max(most_in_use_, counts_.in_use);
    most_this_step_ = std::max(most_this_step_, counts_.in_use);
    void* memory = block->memory
                       ? block->memory.get()
                       : static_cast<std::byte*>(block->arena->memory.get()) + block->offset;
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
    if (trace_.end() && planned_step_ != trace_.last()) make_arena();
    make_room(most_in_use_);
  }
  void release() {
    std::lock_guard lock(mutex_);
    most_in_use_ = most_this_step_ = counts_.in_use;
    make_room(counts_.in_use);
  }
  RecyclerCounts counts() {
    std::lock_guard lock(mutex_);
    RecyclerCounts counts = counts_;
    counts.planned = arena_ != nullptr;
    return counts;
  }

 private:
  struct Block {
    Recycler* owner = nullptr;
    std::size_t bytes = 0;
    c10::DataPtr memory;  // its own; or
    std::shared_ptr<Arena> arena;
    std::size_t offset = 0;
    std::uint64_t step = 0;
    std::size_t index = 0;  // in its step
  };
  using Blocks = std::vector<std::unique_ptr<Block>>;

  std::unique_ptr<Block> in_arena(std::size_t bytes, std::size_t index) {
    if (!arena_) return nullptr;
    std::size_t at = ArenaPlan::kNowhere;
    const bool planned = index < planned_step_.size() && planned_step_[index].bytes == bytes;
    if (planned) {
      at = plan_.offsets[index];
      // What outlives its step is not of the plan, and would be in its way.
      if (at == ArenaPlan::kNowhere) return nullptr;
    }
    if (!planned || !arena_->take(at, bytes)) {
      at = arena_->gap(bytes);
      if (at == ArenaPlan::kNowhere || !arena_->take(at, bytes)) return nullptr;
    }
    auto block = std::make_unique<Block>();
    block->owner = this;
    block->bytes = bytes;
    block->arena = arena_;
    block->offset = at;
    counts_.free -= bytes;
    return block;
  }

  std::unique_ptr<Block> alone(std::size_t bytes) {
    const auto found = best_fit(bytes);
    if (found != free_.end()) {
      std::unique_ptr<Block> block = std::move(*found);
      counts_.free -= block->bytes;
      free_.erase(found);
      return block;
    }
    make_room(std::max(most_in_use_, counts_.in_use + bytes) - bytes);
    auto block = std::make_unique<Block>();
    block->owner = this;
    block->bytes = bytes;
    block->memory = new_memory(bytes);
    return block;
  }

  c10::DataPtr new_memory(std::size_t bytes) {
    counts_.allocations += 1;
    return c10::GetCPUAllocator()->allocate(bytes);
  }

  /// For steps like the last one. Without a plan, blocks go on.
  void make_arena() {
    std::optional<ArenaPlan> plan = plan_arena(trace_.last());
    drop_arena();
    planned_step_ = trace_.last();  // not asked again
    if (!plan) return;
    plan_ = std::move(*plan);
    make_room(counts_.in_use);
    arena_ = std::make_shared<Arena>();
    arena_->bytes = plan_.bytes;
    arena_->memory = new_memory(plan_.bytes);
    counts_.free += plan_.bytes;
  }
  void drop_arena() {
    if (arena_) counts_.free -= free_in(*arena_);
    arena_ = nullptr;
    planned_step_.clear();
  }
  static std::size_t free_in(const Arena& arena) {
    std::size_t bytes = arena.bytes;
    for (const Arena::Range& range : arena.taken) bytes -= range.end - range.begin;
    return bytes;
  }

  /// May be larger by little: rows padded otherwise, not another unit's.
  Blocks::iterator best_fit(std::size_t bytes) {
    auto best = free_.end();
    for (auto at = free_.begin(); at != free_.end(); ++at)
      if ((*at)->bytes >= bytes && (*at)->bytes <= bytes + bytes / 64 &&
          (best == free_.end() || (*at)->bytes < (*best)->bytes))
        best = at;
    return best;
  }
  /// Gives free blocks back, those that lay longest first, until all held fits into `limit`; then
  /// the arena, if nobody is in it.
  void make_room(std::size_t limit) {
    auto keep = free_.begin();
    while (keep != free_.end() && counts_.in_use + counts_.free > limit)
      counts_.free -= (*keep++)->bytes;
    free_.erase(free_.begin(), keep);
    // Its places are rounded: by little it is larger than what lies in it at the worst moment.
    if (arena_ && arena_->taken.empty() && counts_.in_use + counts_.free > limit + limit / 128)
      drop_arena();
  }
  static void give_back(void* context) {
    std::unique_ptr<Block> block(static_cast<Block*>(context));
    Recycler& owner = *block->owner;
    std::lock_guard lock(owner.mutex_);
    if (block->step == owner.trace_.number()) owner.trace_.freed(block->index);
    owner.counts_.in_use -= block->bytes;
    if (!block->arena) {
      owner.counts_.free += block->bytes;
      owner.free_.push_back(std::move(block));
      return;
    }
    block->arena->give(block->offset);
    if (block->arena == owner.arena_) owner.counts_.free += block->bytes;
  }

  std::mutex mutex_;
  Blocks free_;  // in the order they came back
  RecyclerCounts counts_;
  std::size_t most_in_use_ = 0, most_this_step_ = 0;
  StepTrace trace_;
  std::vector<Lifetime> planned_step_;  // the plan is for steps like it
  ArenaPlan plan_;
  std::shared_ptr<Arena> arena_;
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
