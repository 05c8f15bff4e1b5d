// What was read of a source, into the places that want it: copied in runs with their checksums,
// scattered, byte-swapped, or cast.
#include <tessera/storage/checksum.h>
#include <tessera/tensor/region_copy.h>

#include <algorithm>
#include <cstring>

#include "lib/reshard/element_ops.h"
#include "lib/reshard/gather_need.h"

namespace tessera {

namespace {

constexpr std::int64_t kCastNumel = 2048;  // elements cast at once: both forms stay in the cache

Shape shape_of(RegionView region) {
  std::vector<std::int64_t> extents;
  extents.reserve(region.size());
  for (const Interval& i : region) extents.push_back(i.size());
  return Shape(std::move(extents));
}

}  // namespace

void Gather::place(const CopyTask& task, const Need& need, const std::byte* bytes, bool prove,
                   Worker& worker, std::vector<Fragment>* fragments) const {
  if (!options_.place) {
    if (prove) prover_->add(need.chunk, need.offset, need.length, crc32(0, {bytes, need.length}));
    return;
  }
  auto es = static_cast<std::uint64_t>(task.geometry->element_bytes);
  std::vector<Op> ops;
  std::int64_t covered = 0;
  const StoredTensor& tensor = manifest_.tensors[task.tensor];
  bool is_cast = tensor.stored_dtype() != tensor.spec.dtype;
  bool all_runs = need.strides == nullptr && need.source->flags == 0 && !is_cast;
  for (std::uint32_t i = 0; i < task.targets.size(); ++i) {
    Op op;
    if (!intersect_regions(need.common, task.targets[i].box, op.common)) continue;
    op.target = &task.targets[i];
    op.number = i;
    op.run = need.strides == nullptr && is_run(need.common, op.common) &&
             is_run(op.target->box, op.common);
    covered += region_numel(op.common);
    all_runs = all_runs && op.run && op.target->want_crc;
    ops.push_back(std::move(op));
  }
  // The one checksum of a byte serves the source's record and the target alike, where the runs go
  // over unchanged.
  bool fused = prove && all_runs && fragments != nullptr && covered == region_numel(need.common);
  if (prove && !fused) {
    prover_->add(need.chunk, need.offset, need.length, crc32(0, {bytes, need.length}));
  }
  if (need.source->flags != 0) {
    std::byte* changed = worker.private_copy.need(need.length);
    std::memcpy(changed, bytes, need.length);
    apply_source_flags(tensor.stored_dtype(), need.source->flags,
                       {changed, static_cast<std::size_t>(need.length)});
    bytes = changed;
  }
  if (is_cast) return place_cast(task, need, bytes, worker);
  std::vector<std::int64_t> source_strides =
      need.strides != nullptr ? *need.strides : dense_strides(need.common);
  for (const Op& op : ops) {
    std::uint64_t from =
        static_cast<std::uint64_t>(dot_begin(need.common, op.common, source_strides)) * es;
    std::uint64_t to = static_cast<std::uint64_t>(offset_inside(op.target->box, op.common)) * es;
    if (!op.run) {
      copy_region(shape_of(op.common), static_cast<int>(es), bytes + from, source_strides,
                  op.target->data + to, dense_strides(op.target->box));
      continue;
    }
    std::uint64_t length = static_cast<std::uint64_t>(region_numel(op.common)) * es;
    if (!op.target->want_crc || fragments == nullptr) {
      std::memcpy(op.target->data + to, bytes + from, length);
      continue;
    }
    for (std::uint64_t at = 0; at < length;) {
      std::uint64_t place_in_file = op.target->file_offset + to + at;
      std::uint64_t part = std::min(length - at, kMiB - place_in_file % kMiB);
      std::uint32_t crc = copy_crc32(0, op.target->data + to + at,
                                     {bytes + from + at, static_cast<std::size_t>(part)});
      fragments->push_back({need.task, op.number, to + at, part, crc});
      if (fused) prover_->add(need.chunk, need.offset + from + at, part, crc);
      at += part;
    }
  }
}

/// Casts each element of the need once, block by block, and hands it to every target that wants it.
/// No checksum comes for free here: the target's are made when it is written.
void Gather::place_cast(const CopyTask& task, const Need& need, const std::byte* bytes,
                        Worker& worker) const {
  const StoredTensor& tensor = manifest_.tensors[task.tensor];
  const int from_bytes = task.geometry->stored_element_bytes;
  const int to_bytes = task.geometry->element_bytes;
  const auto source_strides = need.strides != nullptr ? *need.strides : dense_strides(need.common);
  std::byte* compact = worker.cast.need(static_cast<std::uint64_t>(kCastNumel) *
                                        static_cast<std::uint64_t>(from_bytes + to_bytes));
  std::byte* cast = compact + kCastNumel * from_bytes;
  CastCounts& counts = worker.casts[task.tensor];
  std::vector<const TargetSpan*> targets;
  Region block;
  Region common;
  for (const TargetSpan& target : task.targets) {
    if (intersect_regions(need.common, target.box, common)) targets.push_back(&target);
  }
  RegionCursor blocks(need.common, kCastNumel);
  while (blocks.next(block)) {
    auto numel = static_cast<std::size_t>(region_numel(block));
    const std::vector<std::int64_t> strides = dense_strides(block);
    const std::byte* dense = bytes + dot_begin(need.common, block, source_strides) * from_bytes;
    if (need.strides != nullptr) {  // a dense source: the block is one run of it
      copy_region(shape_of(block), from_bytes, dense, source_strides, compact, strides);
      dense = compact;
    }
    CastCounts lost =
        cast_elements(tensor.stored_dtype(), {dense, numel * static_cast<std::size_t>(from_bytes)},
                      tensor.spec.dtype, {cast, numel * static_cast<std::size_t>(to_bytes)});
    counts.overflow_to_inf += lost.overflow_to_inf;
    counts.underflow_to_zero += lost.underflow_to_zero;
    for (const TargetSpan* target : targets) {
      if (!intersect_regions(block, target->box, common)) continue;
      copy_region(shape_of(common), to_bytes, cast + offset_inside(block, common) * to_bytes,
                  strides, target->data + offset_inside(target->box, common) * to_bytes,
                  dense_strides(target->box));
    }
  }
}

}  // namespace tessera
