#pragma once
// How ZeRO lays parameters over W ranks: pure arithmetic, for reading and for writing.
//
//   stages 1 and 2   one flat buffer per group, parameters end to end (each may be followed by its
//                    alignment padding), zeros up to a multiple of 2W, cut in W equal parts
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
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tessera::deepspeed {

/// Elements [begin, end) of a parameter's row-major ravel start at `offset` of a rank's buffer.
struct Fragment {
  std::size_t parameter = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t offset = 0;
};

/// One group of stages 1 and 2.
class FlatGroup {
 public:
  /// `alignment_paddings`: elements after each parameter; empty: none. `world_size` >= 1.
  FlatGroup(const std::vector<std::int64_t>& numels,
            const std::vector<std::int64_t>& alignment_paddings, std::int64_t world_size);

  std::int64_t unpadded_numel() const { return unpadded_numel_; }  // alignment padding included
  std::int64_t part_numel() const { return part_numel_; }
  /// Padding at the end of this rank's part: all of the part when nothing reaches it.
  std::int64_t padding(std::int64_t rank) const;
  /// Elements of the part that are not padding.
  std::int64_t content(std::int64_t rank) const { return part_numel_ - padding(rank); }
  /// What lies in [begin, begin + length) of the flat buffer; offsets count from `begin`.
  /// Parameters without elements yield nothing.
  std::vector<Fragment> fragments(std::int64_t begin, std::int64_t length) const;
  std::vector<Fragment> fragments_of(std::int64_t rank) const {
    return fragments(rank * part_numel_, part_numel_);
  }

 private:
  std::vector<std::int64_t> begins_;
  std::vector<std::int64_t> numels_;
  std::int64_t unpadded_numel_ = 0;
  std::int64_t part_numel_ = 0;
};

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
