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

#include "lib/layout/flat_places.h"

namespace tessera::fairscale {

/// One rank's tensor for a backing parameter.
struct StoredShard {
  bool present = false;
  std::int64_t numel = 0;    // stored, padding included
  std::int64_t padding = 0;  // as that rank's metadata says
};

struct ShardPlan {
  /// Where the elements of the buffer are: together all of it, unless `problem`. A rank that has
  /// padding alone has an empty run at the end.
  FlatPlaces places;
  std::vector<std::size_t> outside;  // ranks with a part of another process group's copy
  bool whole = false;                // one rank holds all of it, unsharded
  /// What is wrong, or "". `places` then covers what is there.
  std::string problem;
  std::vector<std::size_t> missing;  // ranks whose part is needed and is not there
  bool guessed_group = false;        // members of a smaller process group follow no padding
};

/// `no_broadcast`: the wrapper's state belongs to each rank alone (FairScale takes rank 0's).
ShardPlan arrange_shards(std::int64_t numel, std::span<const StoredShard> shards,
                         bool no_broadcast);

}  // namespace tessera::fairscale
