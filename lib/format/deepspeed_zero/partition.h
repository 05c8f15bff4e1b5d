#pragma once
// How ZeRO lays parameters over W ranks: pure arithmetic, for reading and for writing.
//
//   stages 1 and 2   one flat buffer per group, parameters end to end (each may be followed by its
//                    alignment padding), zeros up to a multiple of 2W, cut in W equal parts:
//                    FlatLayout with a shard multiple of 2
//
//       | A A A A | A A A B | B B B B | C C C 0 |      A=7 B=5 C=3, W=4: total 16, part 4
//
//   stage 3          every parameter for itself: slices of p = ceil(n / W); a rank's buffer is its
//                    slices one after the other, the last ones padded
//
//       rank 1:  | A2 A3 | B2 B3 | C1 |                A=7 B=5 C=3, W=4: p = 2, 2, 1
//
//   round robin      before the cut, parameter i of a group goes to bin i mod W, bins end to end
//
// Numbers are elements. Throws kCorrupt on overflow. Thread-safe.
#include <tessera/layout/flat_layout.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tessera::deepspeed {

/// Parts of stages 1 and 2 hold a multiple of this many elements.
inline constexpr std::int64_t kPartMultiple = 2;

/// One slice of stage 3: elements [begin, end) of n, and the room it takes.
struct Slice {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t room = 0;  // ceil(n / W)
};
Slice slice_of(std::int64_t numel, std::int64_t world_size, std::int64_t rank);

/// Where sub-groups of stage 3 end: runs of `rooms` (ceil(n / W) per parameter) that reach
/// `sub_group_numel`; one run when it is not reached. Returns the size of each run.
std::vector<std::size_t> sub_groups(const std::vector<std::int64_t>& rooms,
                                    std::int64_t sub_group_numel);

/// Position i of the result: which of `count` parameters stands there after round robin.
std::vector<std::size_t> round_robin_order(std::size_t count, std::int64_t world_size);

}  // namespace tessera::deepspeed
