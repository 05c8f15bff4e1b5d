#include "fsdp_core/params/recycler.h"

#include <c10/core/CPUAllocator.h>
#include <tessera/fsdp/training.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "fsdp_core/params/arena_plan.h"
#include "fsdp_core/params/step_trace.h"

namespace tessera::fsdp {
namespace {

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
    if (!trace_.ends()) return;
    trace_.close(most_this_step_);
    const std::size_t kinds = trace_.period();
    most_in_use_ = trace_.most(std::max<std::size_t>(kinds, kinds_.size()));
    most_in_use_ = std::max(most_in_use_, most_this_step_);
    most_this_step_ = counts_.in_use;
    if (!as_planned() && kinds > 0) make_arena(kinds);
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
    const std::vector<Lifetime>& step = kinds_[kind_].step;
    const bool planned = index < step.size() && step[index].bytes == bytes;
    if (planned) {
      at = kinds_[kind_].plan.offsets[index];
      // What outlives its step is not of the plan, and would be in its way.
      if (at == ArenaPlan::kNowhere) return nullptr;
    }
    if (!planned || !arena_->take(at, bytes)) {
      at = arena_->gap(bytes);
      if (at == ArenaPlan::kNowhere || !arena_->take(at, bytes)) return nullptr;
    }
    std::unique_ptr<Block> block = new_block(bytes);
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
    std::unique_ptr<Block> block = new_block(bytes);
    block->memory = new_memory(bytes);
    return block;
  }

  std::unique_ptr<Block> new_block(std::size_t bytes) {
    std::unique_ptr<Block> block;
    if (spare_.empty()) {
      block = std::make_unique<Block>();
    } else {
      block = std::move(spare_.back());
      spare_.pop_back();
    }
    block->owner = this;
    block->bytes = bytes;
    return block;
  }

  c10::DataPtr new_memory(std::size_t bytes) {
    counts_.allocations += 1;
    return c10::GetCPUAllocator()->allocate(bytes);
  }

  /// Whether the last step was the one that the plan had there.
  bool as_planned() {
    for (std::size_t tried = 0; tried < kinds_.size(); ++tried) {
      const std::size_t kind = (kind_ + tried) % kinds_.size();
      if (kinds_[kind].step != trace_.lifetimes(0)) continue;
      kind_ = (kind + 1) % kinds_.size();
      return tried == 0;
    }
    return false;
  }
  /// For steps like the last ones. Without a plan, blocks go on.
  void make_arena(std::size_t kinds) {
    drop_arena();
    std::size_t bytes = 0;
    bool all = true;
    for (std::size_t ago = kinds; ago-- > 0;) {
      kinds_.push_back({trace_.lifetimes(ago), {}});  // not asked again, if there is no plan
      std::optional<ArenaPlan> plan = plan_arena(kinds_.back().step);
      all &= plan.has_value();
      if (!plan) continue;
      bytes = std::max(bytes, plan->bytes);
      kinds_.back().plan = std::move(*plan);
    }
    if (!all) return;
    make_room(counts_.in_use);
    arena_ = std::make_shared<Arena>();
    arena_->bytes = bytes;
    arena_->memory = new_memory(bytes);
    counts_.free += bytes;
  }
  void drop_arena() {
    if (arena_) counts_.free -= free_in(*arena_);
    arena_ = nullptr;
    kinds_.clear();
    kind_ = 0;
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
    owner.trace_.freed(block->step, block->index);
    owner.counts_.in_use -= block->bytes;
    if (!block->arena) {
      owner.counts_.free += block->bytes;
      owner.free_.push_back(std::move(block));
      return;
    }
    block->arena->give(block->offset);
    if (block->arena == owner.arena_) owner.counts_.free += block->bytes;
    block->arena = nullptr;
    owner.spare_.push_back(std::move(block));
  }

  std::mutex mutex_;
  Blocks free_;   // in the order they came back
  Blocks spare_;  // without memory, for places in the arena
  RecyclerCounts counts_;
  std::size_t most_in_use_ = 0, most_this_step_ = 0;
  StepTrace trace_;
  struct Kind {
    std::vector<Lifetime> step;
    ArenaPlan plan;
  };
  std::vector<Kind> kinds_;  // the steps that the arena is for, in turn
  std::size_t kind_ = 0;     // of the step that goes on
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
