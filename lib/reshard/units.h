#pragma once
// Units: the work of a transfer cut into pieces that fit a byte budget, in destination order.
//
//   slab   a prefix-fixed region of one tensor; read once, scattered to all the segments it touches
//   unit   one slab of a large tensor, or a batch of slabs of small ones that share reads and
//          writes; compressed tensors are one unit of slabs done one after the other, so that each
//          item is decoded once
//
// Cuts depend on the plan and the budget alone, never on timing.
#include <tessera/reshard/plan.h>

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "lib/reshard/geometry.h"

namespace tessera {

struct Slab {
  std::uint32_t entry = 0;  // index in the Plan
  Region region;
};

struct Unit {
  std::vector<Slab> slabs;
  bool sequential = false;
};

struct Budget {
  std::uint64_t share_bytes = 0;  // staged bytes one worker may hold
  std::uint64_t block_bytes = 0;  // a merged read, a slab of a row-sharded tensor, a batch
  std::uint64_t span_bytes = 0;   // one read of a strided source
  int threads = 1;
  /// `block_bytes`: the most of a block.
  static Budget make(std::uint64_t memory_limit_bytes, int threads, std::uint64_t block_bytes);
};

/// Geometries of plan entries, made when asked for and shared while somebody holds them.
/// Thread-safe.
class GeometryCache {
 public:
  GeometryCache(const Manifest& source, const OutputPlan& output, const Plan& plan)
      : source_(source), output_(output), plan_(plan) {}
  std::shared_ptr<const Geometry> get(std::uint32_t entry);

 private:
  const Manifest& source_;
  const OutputPlan& output_;
  const Plan& plan_;
  std::mutex mutex_;
  std::list<std::pair<std::uint32_t, std::shared_ptr<const Geometry>>> recent_;  // latest first
};

/// Byte in its file of element `common`'s first point, for target piece `piece` of `geometry`.
std::uint64_t file_offset_of(const Geometry& geometry, std::size_t piece, const Region& common,
                             const Segment& segment);

std::vector<Unit> make_units(const Manifest& source, const OutputPlan& output, const Plan& plan,
                             GeometryCache& geometries, const Budget& budget);

}  // namespace tessera
