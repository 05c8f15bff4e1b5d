#pragma once
// FlatPlaces: on which ranks the elements of a flat buffer lie, as a reader found them. A run says
// of a stretch of the flat buffer where its elements are; a parameter is a range of it, and what it
// meets of the runs is where its elements are.
//
//   runs                    [0,4) rank 0   [4,8) rank 1   [8,12) rank 2   [12,15) rank 3
//   A=7 is [0,7):           A[0,4) rank 0 at 0    A[4,7) rank 1 at 0
//   B=5 is [7,12):          B[0,1) rank 1 at 3    B[1,5) rank 2 at 0
//   C=3 is [12,15):         C[0,3) rank 3 at 0
//   rank 3 stores 4:        [3,4) is padding
//
//   element e of a parameter that begins at p, in run [b, x) at offset o with b <= p + e < x,
//   is element o + p + e - b of the run's buffer
//
// A rank whose file is lost has no run: a hole. Runs that overlap (files lie) come back all; who
// proves coverage finds them. The other direction, what lies in a shard, is FlatLayout's.
// Numbers are elements. Pure, immutable.
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tessera {

/// Elements [begin, end) lie in a buffer of a rank, from its element `offset` on.
struct FlatRun {
  std::size_t rank = 0;
  std::size_t buffer = 0;  // which of the rank's
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t offset = 0;
  std::int64_t numel() const { return end - begin; }
  bool operator==(const FlatRun&) const = default;
};

class FlatPlaces {
 public:
  FlatPlaces() = default;
  /// In any order; every end >= begin >= 0.
  explicit FlatPlaces(std::vector<FlatRun> runs);

  /// Ascending.
  const std::vector<FlatRun>& runs() const { return runs_; }
  /// Where elements [begin, end) of the flat buffer are, ascending, numbered from `begin` on. An
  /// empty range: one empty run, in the run it touches (none without runs).
  std::vector<FlatRun> cut(std::int64_t begin, std::int64_t end) const;

 private:
  std::vector<FlatRun> runs_;
  std::vector<std::int64_t> reach_;  // by run: the furthest end so far
};

struct FlatRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool operator==(const FlatRange&) const = default;
};

/// Elements [0, numel) of a buffer that are in none of `content` (any order, may overlap).
std::vector<FlatRange> padding_of(std::vector<FlatRange> content, std::int64_t numel);

}  // namespace tessera
