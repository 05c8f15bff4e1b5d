#include "lib/format/fairscale_fsdp/rest.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <charconv>
#include <optional>
#include <set>

#include "lib/format/fairscale_fsdp/reader.h"
#include "lib/state/fields.h"

namespace tessera::fairscale {
namespace {

/// "rank_3" -> 3.
std::optional<std::int64_t> rank_in(const PathItem& item) {
  constexpr std::string_view kPrefix = "rank_";
  if (item.kind != PathItem::Kind::kKey || !item.key.starts_with(kPrefix)) return std::nullopt;
  const std::string_view digits = std::string_view(item.key).substr(kPrefix.size());
  if (!is_decimal(digits) || digits.size() > 9) return std::nullopt;
  std::int64_t rank = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), rank);
  return rank;
}

Path path_of(const StateEntry& entry) {
  return entry.path.empty() ? root_path(entry.name) : entry.path;
}

std::size_t items_of_root(const std::string& root) { return root_path(root).size(); }

}  // namespace

RestOfState::RestOfState(const Manifest& source, const Roles& roles, const std::string& model_root,
                         const TargetOptimizer& optimizer, const std::vector<bool>& kept,
                         std::int64_t world_size)
    : world_size_(world_size) {
  const std::set<std::size_t> of_optimizer(optimizer.extra.begin(), optimizer.extra.end());
  for (std::size_t i = 0; i < roles.entries.size(); ++i) {
    const StateEntry& entry = source.state.entries[i];
    const Role role = roles.entries[i].role;
    const bool model =
        role == Role::kModel && (model_root.empty() || entry.name.starts_with(model_root + "."));
    if (model || role == Role::kOptimState || role == Role::kOptimGroup || !kept[i]) continue;
    const Path path = path_of(entry);
    if (of_optimizer.contains(i)) {
      add(source, i, items_of_root(optimizer.root), of_optimizer_);
      continue;
    }
    if (optimizer.present && !optimizer.root.empty() &&
        entry.name.starts_with(optimizer.root + "."))
      continue;  // the ids' maps: made anew
    if (path.size() == 2 && path[0].text() == kOwnStateKey && rank_in(path[1])) {
      const std::int64_t rank = *rank_in(path[1]);
      const Value *weights = entry.value.find("weights"), *state = entry.value.find("state");
      if (weights && state) {
        if (rank >= world_size)
          fail(Code::kUnsupported,
               fmt::format("\"{}\" belongs to one of more ranks than {}", entry.name, world_size),
               "--rank-state rank0 keeps the first rank's");
        own_[rank] = {*weights, *state};
        continue;
      }
    }
    add(source, i, 0, by_rank_);
    bool& tensors = keys_[path[0].text()];
    tensors = tensors || entry.value.holds_tensors();
  }
  place_containers(source);
}

void RestOfState::add(const Manifest& source, std::size_t index, std::size_t skip,
                      std::map<std::int64_t, StateDict>& to) const {
  const StateEntry& entry = source.state.entries[index];
  Path path = path_of(entry);
  path.erase(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(skip));
  std::int64_t rank = -1;
  for (std::size_t i = 1; i < path.size(); ++i)
    if (const auto of = rank_in(path[i])) {
      rank = *of;
      path.erase(path.begin() + static_cast<std::ptrdiff_t>(i));
      break;
    }
  if (rank >= world_size_)
    fail(Code::kUnsupported,
         fmt::format("\"{}\" belongs to rank {}; the result has {}", printable(entry.name), rank,
                     world_size_),
         "choose with --rank-state drop or rank0");
  to[rank].entries.push_back({dotted(path), path, entry.value});
}

/// Empty dicts and ordered ones of the other keys go along.
void RestOfState::place_containers(const Manifest& source) {
  for (const ContainerNote& note : source.state.containers) {
    if (note.path.empty() || !keys_.contains(note.path[0].text())) continue;
    ContainerNote copy = note;
    copy.entries_before = static_cast<std::size_t>(-1);
    by_rank_[-1].containers.push_back(std::move(copy));
  }
}

ValueDict RestOfState::of_rank(std::int64_t rank) const {
  StateDict state;
  if (const auto all = by_rank_.find(-1); all != by_rank_.end()) {
    for (const StateEntry& entry : all->second.entries)
      if (rank == 0 || !keys_.at(entry.path[0].text())) state.entries.push_back(entry);
    for (const ContainerNote& note : all->second.containers)
      if (rank == 0 || !keys_.at(note.path[0].text())) state.containers.push_back(note);
  }
  if (const auto own = by_rank_.find(rank); own != by_rank_.end())
    state.entries.insert(state.entries.end(), own->second.entries.begin(),
                         own->second.entries.end());
  if (state.entries.empty() && state.containers.empty()) return {};
  const Value root = unflatten(state);
  return root.is_dict() ? root.as_dict() : ValueDict();
}

ValueDict RestOfState::optimizer_keys(std::int64_t rank) const {
  StateDict state;
  for (const std::int64_t which : {std::int64_t{-1}, rank})
    if (const auto found = of_optimizer_.find(which); found != of_optimizer_.end())
      if (which >= 0 || state.entries.empty())
        state.entries.insert(state.entries.end(), found->second.entries.begin(),
                             found->second.entries.end());
  if (rank < 0 && of_optimizer_.size() > of_optimizer_.count(-1))
    fail(Code::kUnsupported, "ranks keep different values beside their optimizers' state",
         "choose with --rank-state rank0 or drop");
  if (state.entries.empty()) return {};
  const Value root = unflatten(state);
  return root.is_dict() ? root.as_dict() : ValueDict();
}

const Value* RestOfState::own_weight(std::int64_t rank, const std::string& key) const {
  const auto found = own_.find(rank);
  return found == own_.end() ? nullptr : found->second.weights.find(key);
}

const Value* RestOfState::own_state(std::int64_t rank, const std::string& key) const {
  const auto found = own_.find(rank);
  return found == own_.end() ? nullptr : found->second.state.find(key);
}

bool RestOfState::has_own_state() const {
  for (const auto& [rank, own] : own_)
    if (own.state.is_dict() && !own.state.as_dict().empty()) return true;
  return false;
}

}  // namespace tessera::fairscale
