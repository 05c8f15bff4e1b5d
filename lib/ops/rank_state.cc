#include "lib/ops/rank_state.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <charconv>
#include <set>

namespace tessera {

namespace {

/// "rank3", "rank_3", "dp_rank_3", "rng_rank3": the number; anything else: nothing.
std::optional<std::int64_t> rank_in(std::string_view text) {
  std::size_t digits = text.size();
  while (digits > 0 && text[digits - 1] >= '0' && text[digits - 1] <= '9') --digits;
  if (digits == text.size() || text.size() - digits > 9) return std::nullopt;
  std::string_view word = text.substr(0, digits);
  if (word.ends_with('_')) word.remove_suffix(1);
  if (!word.ends_with("rank")) return std::nullopt;
  word.remove_suffix(4);
  if (!word.empty() && !word.ends_with('_')) return std::nullopt;
  std::int64_t rank = 0;
  std::from_chars(text.data() + digits, text.data() + text.size(), rank);
  return rank;
}

}  // namespace

std::vector<RankStateEntry> find_rank_state(const Manifest& manifest) {
  Roles roles = find_roles(manifest.state);
  std::vector<RankStateEntry> found;
  for (std::size_t i = 0; i < manifest.state.entries.size(); ++i) {
    if (roles.entries[i].role != Role::kOther) continue;
    for (const PathItem& item : manifest.state.entries[i].path) {
      if (item.kind != PathItem::Kind::kKey) continue;
      if (auto rank = rank_in(item.key)) {
        found.push_back({i, *rank});
        break;
      }
    }
  }
  return found;
}

std::vector<std::string> apply_rank_state(Manifest& manifest, RankStatePolicy policy,
                                          std::optional<std::int64_t> new_world_size) {
  std::vector<RankStateEntry> found = find_rank_state(manifest);
  if (found.empty() || policy == RankStatePolicy::kKeep) return {};
  std::set<std::int64_t> ranks;
  for (const RankStateEntry& entry : found) ranks.insert(entry.rank);
  std::int64_t old_world_size =
      manifest.world_size.value_or(static_cast<std::int64_t>(ranks.size()));
  bool changes = new_world_size.value_or(1) != old_world_size;
  if (policy == RankStatePolicy::kDefault && !changes) return {};
  if (policy == RankStatePolicy::kDefault || policy == RankStatePolicy::kError) {
    fail(Code::kUnsupported,
         fmt::format("\"{}\" and {} more belong to single ranks ({} of them), and the world size "
                     "goes from {} to {}",
                     manifest.state.entries[found[0].entry].name, found.size() - 1, ranks.size(),
                     old_world_size, new_world_size.value_or(1)),
         "choose with --rank-state keep, drop or rank0");
  }
  std::vector<bool> keep(manifest.state.entries.size(), true);
  std::vector<std::string> dropped;
  for (const RankStateEntry& entry : found) {
    if (policy == RankStatePolicy::kRank0 && entry.rank == 0) continue;
    keep[entry.entry] = false;
    dropped.push_back(manifest.state.entries[entry.entry].name);
  }
  keep_entries(manifest, keep);
  return dropped;
}

}  // namespace tessera
