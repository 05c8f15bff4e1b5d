#pragma once
// Rank state: entries that belong to one rank, which mean nothing at another world size and are
// never merged or dropped in silence.
//
//   any role             those of which the reader says so (StateEntry::rank): files differed
//   weights, optimizer   else "w.rank_0" .. "w.rank_<W-1>", where all W ranks of the checkpoint
//                        have one: what another format kept of such a state
//   all else             a rank number in the path ("rng.rank_3", "dataloader.dp_rank_0")
//
// Megatron's objects of ranks go by rules of their own: rank_objects.h.
#include <tessera/ops/rank_state_policy.h>

#include <optional>
#include <string>
#include <vector>

#include "lib/ops/edit/rank_objects.h"

namespace tessera {

struct RankStateEntry {
  std::size_t entry = 0;  // in StateDict::entries
  std::int64_t rank = 0;
  bool shared_name = false;  // ranks know it by its name without the rank
};
std::vector<RankStateEntry> find_rank_state(const Manifest& manifest);

/// Applies the policy; returns the names left out. kRank0: rank 0's "w.rank_0" is "w" again, as
/// each rank calls it. kDrop: parameters leave with their state and their places in groups. Throws
/// kUnsupported (default or error, when the world size changes) naming the first entry and the
/// ranks concerned.
std::vector<std::string> apply_rank_state(Manifest& manifest, RankStatePolicy policy,
                                          const ResultRanks& result);
/// Whose state the policy loses, and which ranks of the result have none. Of the manifest before
/// apply_rank_state(); none where every rank keeps its own.
std::vector<Note> rank_state_notes(const Manifest& manifest, RankStatePolicy policy,
                                   const ResultRanks& result);

}  // namespace tessera
