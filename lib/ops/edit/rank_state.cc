#include "lib/ops/edit/rank_state.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/state/roles.h>

#include <charconv>
#include <map>
#include <set>
#include <utility>

#include "lib/state/edit/forget_ids.h"

namespace tessera {

namespace {

/// "rank3", "rank_3", "dp_rank_3", "rng_rank3": the number; anything else: nothing.
std::optional<std::int64_t> rank_in(std::string_view text) {
  std::size_t digits = text.size();
  while (digits > 0 && is_digit(text[digits - 1])) --digits;
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

/// By names alone, for what a format without ranks' own state kept of it: "w.rank_0" ..
/// "w.rank_<W-1>", all that the world has and of one role. One parameter called "lora.rank_8" is
/// none of these.
std::map<std::size_t, std::int64_t> complete_siblings(const Manifest& manifest) {
  constexpr std::string_view kRank = ".rank_";
  std::map<std::string_view, std::map<std::int64_t, std::size_t>> families;
  const std::vector<StateEntry>& entries = manifest.state.entries;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const std::string_view name = entries[i].name;
    const std::size_t at = name.rfind('.');
    if (at == name.npos || !name.substr(at).starts_with(kRank)) continue;
    if (const auto rank = rank_in(name.substr(at + 1)))
      families[name.substr(0, at)].emplace(*rank, i);
  }
  std::map<std::size_t, std::int64_t> found;
  for (const auto& [name, members] : families) {
    const auto count = static_cast<std::int64_t>(members.size());
    if (count < 2 || manifest.world_size != count || members.rbegin()->first != count - 1) continue;
    for (const auto& [rank, entry] : members) found.emplace(entry, rank);
  }
  return found;
}

/// A rank number in the path.
std::optional<std::int64_t> rank_in(const Path& path) {
  for (const PathItem& item : path)
    if (item.kind == PathItem::Kind::kKey)
      if (const auto rank = rank_in(item.key)) return rank;
  return std::nullopt;
}

/// "model.w.rank_0" is what every rank calls "model.w"; nullopt for "rng.rank_0.state" and the
/// like.
std::optional<Path> shared_path(const StateEntry& entry, std::int64_t rank) {
  const std::string item = fmt::format("rank_{}", rank);
  Path path = entry.path;
  if (path.size() > 1 && is_key(path.back(), item)) {
    path.pop_back();
    return path;
  }
  const std::string suffix = "." + item;
  if (path.size() != 1 || path[0].kind != PathItem::Kind::kKey || !path[0].key.ends_with(suffix))
    return std::nullopt;
  path[0].key = path[0].key.substr(0, path[0].key.size() - suffix.size());
  return path;
}

/// Leaves out what `found` lists.
class RankStateCut {
 public:
  RankStateCut(Manifest& manifest, const std::vector<RankStateEntry>& found)
      : manifest_(manifest), found_(found) {
    for (const StateEntry& entry : manifest.state.entries) names_.insert(entry.name);
  }

  /// Rank 0's stay.
  std::vector<std::string> keep_rank0() {
    cut([](const RankStateEntry& own, bool) { return own.rank == 0; });
    return std::move(dropped_);
  }
  /// A parameter that leaves takes its optimizer state and its place in the groups along, and no
  /// parameter keeps a part of its state.
  std::vector<std::string> drop() {
    const std::set<std::string> shared =
        cut([](const RankStateEntry&, bool restored) { return restored; });
    if (shared.empty()) return std::move(dropped_);
    const Roles roles = find_roles(manifest_.state);
    const std::vector<StateEntry>& entries = manifest_.state.entries;
    std::vector<bool> keep(entries.size(), true);
    std::set<std::string> gone;
    std::set<std::pair<std::int32_t, std::string>> partial;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (!shared.contains(entries[i].name)) continue;
      keep[i] = false;
      const EntryRole& role = roles.entries[i];
      if (role.role == Role::kModel && entries[i].value.is_tensor()) gone.insert(role.fqn);
      if (role.role == Role::kOptimState) partial.emplace(role.root, role.fqn);
    }
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const EntryRole& role = roles.entries[i];
      if (role.role == Role::kOptimState && partial.contains({role.root, role.fqn}))
        keep[i] = false;
      if (role.root >= 0 && gone.contains(role.fqn)) keep[i] = false;
    }
    forget_ids(manifest_, roles, gone, keep);
    for (std::size_t i = 0; i < entries.size(); ++i)
      if (!keep[i])
        dropped_.push_back(entries[i].name + (shared.contains(entries[i].name) ? ".rank_0" : ""));
    keep_entries(manifest_, keep, {gone.begin(), gone.end()});
    return std::move(dropped_);
  }

 private:
  /// Leaves out what does not stay; returns the names that rank 0's got back.
  template <class Stays>
  std::set<std::string> cut(Stays stays) {
    std::vector<bool> keep(manifest_.state.entries.size(), true);
    std::set<std::string> shared;
    for (const RankStateEntry& own : found_) {
      StateEntry& entry = manifest_.state.entries[own.entry];
      const std::string name = entry.name;
      const bool restored = own.shared_name && own.rank == 0 && restore_name(entry);
      if (restored) shared.insert(entry.name);
      keep[own.entry] = stays(own, restored);
      if (!keep[own.entry]) dropped_.push_back(name);
    }
    keep_entries(manifest_, keep);
    return shared;
  }

  bool restore_name(StateEntry& entry) {
    const auto path = shared_path(entry, 0);
    if (!path) return false;
    std::string name = dotted(*path);
    if (!names_.insert(name).second) return false;
    for_each_tensor(entry.value, [&](std::uint32_t t) { manifest_.tensors[t].name = name; });
    entry.name = std::move(name);
    entry.path = *path;
    entry.rank.reset();
    return true;
  }

  Manifest& manifest_;
  const std::vector<RankStateEntry>& found_;
  std::set<std::string> names_;
  std::vector<std::string> dropped_;
};

}  // namespace

std::vector<RankStateEntry> find_rank_state(const Manifest& manifest) {
  const Roles roles = find_roles(manifest.state);
  const std::map<std::size_t, std::int64_t> siblings = complete_siblings(manifest);
  std::set<std::size_t> objects;
  for (const RankObject& object : find_rank_objects(manifest, {})) objects.insert(object.entry);
  std::vector<RankStateEntry> found;
  for (std::size_t i = 0; i < manifest.state.entries.size(); ++i) {
    if (objects.contains(i)) continue;
    const StateEntry& entry = manifest.state.entries[i];
    const auto sibling = siblings.find(i);
    if (entry.rank) {
      found.push_back({i, *entry.rank, true});
    } else if (roles.entries[i].role == Role::kOther) {
      if (const auto rank = rank_in(entry.path)) found.push_back({i, *rank, false});
    } else if (sibling != siblings.end()) {
      found.push_back({i, sibling->second, true});
    }
  }
  return found;
}

namespace {

std::set<std::int64_t> ranks_of(const std::vector<RankStateEntry>& found) {
  std::set<std::int64_t> ranks;
  for (const RankStateEntry& entry : found) ranks.insert(entry.rank);
  return ranks;
}

std::int64_t world_size_of(const Manifest& manifest, const std::set<std::int64_t>& ranks) {
  return manifest.world_size.value_or(static_cast<std::int64_t>(ranks.size()));
}

std::string ranks_text(std::int64_t first, std::int64_t last) {
  return first == last ? fmt::format("rank {}", first) : fmt::format("ranks {} to {}", first, last);
}

}  // namespace

std::vector<Note> rank_state_notes(const Manifest& manifest, RankStatePolicy policy,
                                   const ResultRanks& result) {
  std::vector<Note> notes;
  if (auto note = rank_objects_note(manifest, policy, result)) notes.push_back(std::move(*note));
  const std::set<std::int64_t> ranks = ranks_of(find_rank_state(manifest));
  if (ranks.empty()) return notes;
  const std::int64_t before = world_size_of(manifest, ranks);
  const std::int64_t after = result.world_size.value_or(1);
  std::string message;
  if (policy == RankStatePolicy::kKeep && after > before)
    message = fmt::format("{} of the result: new, without state of its own",
                          ranks_text(before, after - 1));
  else if (policy == RankStatePolicy::kKeep && after < before)
    message = fmt::format("state of {} is kept by name; the result has no such ranks",
                          ranks_text(after, before - 1));
  else if (policy == RankStatePolicy::kRank0 && before > 1)
    message = fmt::format("state of {} is left out, rank 0's is kept", ranks_text(1, before - 1));
  else if (policy == RankStatePolicy::kDrop)
    message = fmt::format("state of {} is left out", ranks_text(0, before - 1));
  if (!message.empty())
    notes.push_back({Finding::kRankState, Severity::kWarning, std::move(message), "", ""});
  return notes;
}

std::vector<std::string> apply_rank_state(Manifest& manifest, RankStatePolicy policy,
                                          const ResultRanks& result) {
  std::vector<std::string> dropped = apply_to_rank_objects(manifest, policy, result);
  const std::vector<RankStateEntry> found = find_rank_state(manifest);
  if (found.empty() || policy == RankStatePolicy::kKeep) return dropped;
  const std::set<std::int64_t> ranks = ranks_of(found);
  const std::int64_t old_world_size = world_size_of(manifest, ranks);
  const std::int64_t new_world_size = result.world_size.value_or(1);
  const bool changes = new_world_size != old_world_size;
  if (policy == RankStatePolicy::kDefault && !changes) return dropped;
  if (policy == RankStatePolicy::kDefault || policy == RankStatePolicy::kError) {
    const std::string change = changes ? fmt::format(", and the world size goes from {} to {}",
                                                     old_world_size, new_world_size)
                                       : "";
    fail(Code::kUnsupported,
         fmt::format("\"{}\" and {} more belong to single ranks ({} of them){}",
                     manifest.state.entries[found[0].entry].name, found.size() - 1, ranks.size(),
                     change),
         "choose with --rank-state keep, drop or rank0");
  }
  RankStateCut cut(manifest, found);
  const auto more = policy == RankStatePolicy::kRank0 ? cut.keep_rank0() : cut.drop();
  dropped.insert(dropped.end(), more.begin(), more.end());
  return dropped;
}

}  // namespace tessera
