#pragma once
// Rank state: entries that belong to one rank (its random generator, its data loader), known by a
// rank number in their path
// ("rng.rank_3", "dataloader.dp_rank_0"). They mean nothing at another world size, and are never
// merged or dropped in silence.
#include <tessera/ops/convert.h>

#include <string>
#include <vector>

namespace tessera {

struct RankStateEntry {
  std::size_t entry = 0;  // in StateDict::entries
  std::int64_t rank = 0;
};
std::vector<RankStateEntry> find_rank_state(const Manifest& manifest);

/// Applies the policy; returns the names left out. Throws kUnsupported (default or error, when the
/// world size changes) naming the first entry and the ranks concerned.
std::vector<std::string> apply_rank_state(Manifest& manifest, RankStatePolicy policy,
                                          std::optional<std::int64_t> new_world_size);

}  // namespace tessera
