#pragma once
// State that a rank keeps whole for every parameter that its partition touches, where other state is
// cut as the partition is: the momentum of DeepSpeed's Muon under stages 1 and 2, which its update
// needs as a matrix.
//
//   partitions     | A A A A | A A B B | B B C C |        A=6 B=4 C=2, 3 ranks
//   momentum       | A       | A  B    | B  C    |        of 6, 10 and 6 elements
//
// Source: deepspeed/runtime/zero/stage_1_and_2.py, get_flat_partition (0.18 and newer).
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lib/format/deepspeed_zero/checkpoint.h"

namespace tessera::deepspeed {

/// The value of one leaf of a rank's state; nullptr: it has none.
const Value* leaf_on(const OptimFile& rank, std::size_t flat, const std::string& leaf);

class WholeLeaves {
 public:
  /// `checkpoint`, with its parameters placed, must outlive it.
  explicit WholeLeaves(const ZeroCheckpoint& checkpoint);

  /// Whether the leaf of that buffer is kept so: by the group's word or by the sizes alone.
  bool holds(std::size_t flat, const std::string& leaf);
  /// Where all of the parameter lies; nullopt: in no file that is there.
  std::optional<ArchivePiece> piece_of(const TrainedParameter& parameter, const std::string& leaf);

 private:
  using Touched = std::vector<const TrainedParameter*>;  // in order of the buffer

  const ZeroCheckpoint& c_;
  std::map<std::pair<std::size_t, std::size_t>, Touched> touched_;  // by rank and buffer
  std::map<std::pair<std::size_t, std::string>, bool> known_;
};

}  // namespace tessera::deepspeed
