#pragma once
// Recycler: the memory that units gather into and reduce from, used again instead of given back: on
// CPUs a large buffer fresh from the system costs a page fault every 4 KiB, which takes as long as
// the gather itself. GPUs have their caching allocator for it.
//
//   blocks   at first: a free block of the size asked for is used again
//   arena    once steps (step_trace.h) come again as they were, or kinds of steps in turn: one block
//            for all, in which every allocation has its place (arena_plan.h). What differs from the
//            plan finds a gap in it, or falls back on blocks.
//
// What it holds and what is in use together never exceed what was in use together at the worst moment
// of this step or of the last of each kind (but for steps that leave their plan): so it adds nothing
// to the peak.
#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <cstddef>

namespace tessera::fsdp {

/// Where gathered parameters and unsharded gradients of that device come from. Lives for ever;
/// thread-safe.
c10::Allocator* buffer_allocator(c10::DeviceType device);

/// After a backward: what only an earlier step needed goes back to the system.
void end_recycler_step();

struct RecyclerCounts {
  std::size_t in_use = 0;       // bytes
  std::size_t free = 0;         // bytes held for reuse
  std::size_t allocations = 0;  // blocks asked of the system
  bool planned = false;         // an arena is there
};
RecyclerCounts recycler_counts();

}  // namespace tessera::fsdp
