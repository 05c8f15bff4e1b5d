#pragma once
// Which rank holds which elements of a backing parameter. Pure arithmetic on the numbers that the
// files state.
//
//   n elements over g ranks: c = ceil(n / g), rank i holds [i*c, min((i+1)*c, n)) and padding up
//   to c; the last ranks may hold padding alone. g is the size of the wrapper's process group:
//   normally the number of rank files, less for experts.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tessera::fairscale {

/// One rank's tensor for a backing parameter.
struct StoredShard {
  bool present = false;
  std::int64_t numel = 0;    // stored, padding included
  std::int64_t padding = 0;  // as that rank's metadata says
};

/// The first (end - begin) elements of this rank's tensor are elements [begin, end) of the buffer.
struct ShardRun {
  std::size_t rank = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool operator==(const ShardRun&) const = default;
};

struct ShardPlan {
  std::vector<ShardRun> runs;        // ascending; together all of the buffer, unless `problem`
  std::vector<std::size_t> outside;  // ranks with a part of another process group's copy
  bool whole = false;                // one rank holds all of it, unsharded
  /// What is wrong, or "". Runs then cover what is there.
  std::string problem;
  std::vector<std::size_t> missing;  // ranks whose part is needed and is not there
  bool guessed_group = false;        // members of a smaller process group follow no padding
};

/// `no_broadcast`: the wrapper's state belongs to each rank alone (FairScale takes rank 0's).
ShardPlan arrange_shards(std::int64_t numel, std::span<const StoredShard> shards,
                         bool no_broadcast);

/// Elements [begin, end) of a buffer as parts of runs, in order. An empty range: one empty part of
/// the run it touches.
struct RunPart {
  std::size_t rank = 0;
  std::int64_t first_element = 0;  // of that rank's tensor
  std::int64_t begin = 0;          // elements of the buffer
  std::int64_t end = 0;
  bool operator==(const RunPart&) const = default;
};
std::vector<RunPart> cut_runs(std::span<const ShardRun> runs, std::int64_t begin, std::int64_t end);

}  // namespace tessera::fairscale
