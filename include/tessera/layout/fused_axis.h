#pragma once
// FusedAxis: several parts laid along one dim of one tensor: [gate; up], or q, k, v per group.
//
//   groups = 1     | part 0 | part 1 | part 2 |                     ratios 4,1,1: plain q, k, v
//   groups = G     | p0 p1 p2 | p0 p1 p2 | ... G times              Megatron's QKV, GPT-NeoX
//   interleaved    | p0 p1 p0 p1 ... one index each                 alternating gate and up
//
// One unit is extent / (groups * sum of ratios) indices; part p has ratios[p] units per group. What
// does not divide is kInvalidArgument naming the part. Pure and thread-safe.
//
// Tensor parallelism cuts every part, not the whole: rank r of n holds of [gate; up] its n-th of
// gate and its n-th of up; of grouped parts whole groups.
#include <tessera/layout/layout.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

/// Indices [fused_begin, fused_begin + size * fused_step) of the fused dim, every fused_step-th,
/// are indices [part_begin, part_begin + size) of part `part`.
struct FusedRun {
  int part = 0;
  std::int64_t part_begin = 0;
  std::int64_t fused_begin = 0;
  std::int64_t fused_step = 1;
  std::int64_t size = 0;
};

struct FusedAxis {
  int dim = 0;
  std::vector<std::int64_t> ratios{1};  // units per group, one per part; each >= 1
  std::int64_t groups = 1;              // how often the parts repeat; 0: interleaved
  std::vector<std::string> names;       // of the parts, for messages; may be empty

  /// Extent of part `part` when the fused dim has `extent` indices.
  std::int64_t part_extent(std::int64_t extent, int part) const;
  /// The whole fused dim as runs, ascending by fused_begin; interleaved: one run per part.
  std::vector<FusedRun> runs(std::int64_t extent) const;
  /// Which indices of the fused dim rank `index` of `parts` holds, in the order it holds them.
  /// Throws kInvalidArgument when a part (grouped: the groups) cannot be shared evenly.
  std::vector<RowRange> shard_rows(std::int64_t extent, std::int64_t parts,
                                   std::int64_t index) const;

 private:
  std::int64_t unit(std::int64_t extent) const;
};

}  // namespace tessera
