#include "lib/ops/edit/rank_objects.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/state/manifest_edit.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "lib/format/megatron_torch/args.h"
#include "lib/state/edit/take_out.h"
#include "lib/state/sharded_object.h"

namespace tessera {
namespace {

/// Sizes of the mesh dims that Megatron's own state depends on.
struct Sizes {
  std::int64_t world = 1, tp = 1, pp = 1, cp = 1;

  std::int64_t model_ranks() const { return tp * pp; }
  std::int64_t data_ranks() const { return world / model_ranks(); }  // context-parallel ones too
};

/// nullopt: the target states how many ranks there are, and not what they do.
std::optional<Sizes> sizes_of(const ResultRanks& ranks) {
  const std::int64_t world = ranks.world_size.value_or(1);
  if (!ranks.mesh) return world == 1 ? std::optional(Sizes{}) : std::nullopt;
  Sizes sizes;
  sizes.world = world;
  for (const MeshDim& dim : ranks.mesh->dims()) {
    if (dim.name == "tp") sizes.tp = dim.size;
    if (dim.name == "pp") sizes.pp = dim.size;
    if (dim.name == "cp") sizes.cp = dim.size;
  }
  return sizes;
}

bool is_grid(const std::vector<std::int64_t>& grid, const std::vector<std::int64_t>& sizes) {
  for (std::size_t d = 0; d < grid.size(); ++d)
    if (grid[d] != 0 && grid[d] != sizes[d]) return false;
  return true;
}

/// A generator for each data-parallel rank, where they began apart (--data-parallel-random-init):
/// the object is then a list of more than one.
std::optional<std::int64_t> generators(const ShardedObject& object, const Value& value) {
  const auto is_list = [](const Value& v) { return v.kind() == Value::Kind::kList; };
  if (!object.key.ends_with("rng_state") || !is_list(value)) return std::nullopt;
  const ValueList& saved = value.as_list();
  if (saved.size() != 1 || !is_list(saved[0]) || saved[0].as_list().size() < 2) return std::nullopt;
  return static_cast<std::int64_t>(saved[0].as_list().size());
}

/// Compares the mesh that objects were saved at with that of a result.
class MeshChange {
 public:
  MeshChange(const Manifest& manifest, const ResultRanks& ranks)
      : world_before_(manifest.world_size),
        world_after_(ranks.world_size.value_or(1)),
        after_(sizes_of(ranks)) {
    const megatron_torch::Args args = megatron_torch::args_of(manifest.state);
    tp_before_ = args.integer("tensor_model_parallel_size");
    pp_before_ = args.integer("pipeline_model_parallel_size");
  }

  bool concerns(const ShardedObject& object, const Value& value) const {
    const std::int64_t places = object.places();
    if (!after_) return world_before_.value_or(places) != world_after_;
    const Sizes& after = *after_;
    const auto apart = generators(object, value);
    if (apart && *apart * after.cp != after.data_ranks()) return true;
    if (object.grid.size() == 2) return !is_grid(object.grid, {after.pp, after.tp});
    if (object.grid.size() == 3)
      return !is_grid(object.grid, {after.pp, after.tp, after.data_ranks()});
    if (tp_before_.value_or(after.tp) != after.tp || pp_before_.value_or(after.pp) != after.pp)
      return true;
    const bool of_all = object.key.ends_with("rerun_state_machine_state");
    return places != after.world && (of_all || places != after.model_ranks());
  }

 private:
  std::optional<std::int64_t> world_before_, tp_before_, pp_before_;
  std::int64_t world_after_ = 1;
  std::optional<Sizes> after_;
};

std::string family_of(const ShardedObject& object) {
  return fmt::format("{}/shard_*_{}", printable(object.key), fmt::join(object.grid, "."));
}

bool any_changes(const std::vector<RankObject>& found) {
  for (const RankObject& object : found)
    if (object.changes) return true;
  return false;
}

std::string families(const std::vector<RankObject>& found, bool changed_only) {
  std::set<std::string> names;
  for (const RankObject& object : found)
    if (object.changes || !changed_only) names.insert(object.family);
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

std::vector<RankObject> find_rank_objects(const Manifest& manifest, const ResultRanks& ranks) {
  const MeshChange change(manifest, ranks);
  std::vector<RankObject> found;
  for (std::size_t i = 0; i < manifest.state.entries.size(); ++i) {
    const StateEntry& entry = manifest.state.entries[i];
    for (const PathItem& item : entry.path) {
      if (item.kind != PathItem::Kind::kKey) continue;
      const auto object = parse_sharded_object(item.key);
      if (!object || !object->of_ranks()) continue;
      found.push_back(
          {i, object->number(), family_of(*object), change.concerns(*object, entry.value)});
      break;
    }
  }
  return found;
}

std::optional<Note> rank_objects_note(const Manifest& manifest, RankStatePolicy policy,
                                      const ResultRanks& ranks) {
  const std::vector<RankObject> found = find_rank_objects(manifest, ranks);
  if (found.empty()) return std::nullopt;
  std::string message;
  if (policy == RankStatePolicy::kDrop)
    message = fmt::format("state of single ranks is left out: {}", families(found, false));
  else if (policy == RankStatePolicy::kRank0)
    message = fmt::format("state of single ranks is left out, except the first rank's: {}",
                          families(found, false));
  else if (any_changes(found))
    message = fmt::format(
        "state of single ranks is of another mesh: {}; it is kept under these names, which a load "
        "at the new mesh does not ask for (--rank-state drop leaves it out)",
        families(found, true));
  if (message.empty()) return std::nullopt;
  return Note{Finding::kRankState, Severity::kWarning, std::move(message), "", ""};
}

std::vector<std::string> apply_to_rank_objects(Manifest& manifest, RankStatePolicy policy,
                                               const ResultRanks& ranks) {
  if (policy == RankStatePolicy::kDefault || policy == RankStatePolicy::kKeep) return {};
  const std::vector<RankObject> found = find_rank_objects(manifest, ranks);
  if (found.empty()) return {};
  if (policy == RankStatePolicy::kError)
    fail(Code::kUnsupported,
         fmt::format("state belongs to single ranks{}: {}",
                     any_changes(found) ? " of another mesh" : "", families(found, false)),
         "choose with --rank-state keep, drop or rank0");
  std::vector<std::string> dropped;
  std::vector<bool> keep(manifest.state.entries.size(), true);
  for (const RankObject& object : found) {
    if (policy == RankStatePolicy::kRank0 && object.number == 0) continue;
    keep[object.entry] = false;
    dropped.push_back(manifest.state.entries[object.entry].name);
  }
  keep_entries(manifest, keep);
  return dropped;
}

namespace {

constexpr std::string_view kRandomState = "rng_state";

/// Tensors that are entries now are no longer embedded in another one, and the other way round.
void own_tensors(Manifest& manifest, const StateEntry& entry) {
  for_each_tensor(entry.value, [&](std::uint32_t index) {
    manifest.tensors[index].name = entry.name;
    manifest.tensors[index].embedded = !entry.value.is_tensor();
  });
}

/// The value with tensors of its own.
Value copied(Manifest& manifest, const Value& value) {
  std::vector<std::uint32_t> fresh(manifest.tensors.size());
  for (std::size_t i = 0; i < fresh.size(); ++i) fresh[i] = static_cast<std::uint32_t>(i);
  for_each_tensor(value, [&](std::uint32_t index) {
    const TensorKind kind = manifest.tensors[index].kind;
    fresh[index] =
        build_tensor(manifest, manifest.tensors[index].name, manifest.tensors[index].spec.shape,
                     {{whole_piece(manifest, index)}});
    manifest.tensors[fresh[index]].kind = kind;
  });
  return remap_tensors(value, fresh);
}

void append_leaves(Manifest& manifest, const Value& root, std::int64_t rank) {
  constexpr std::uint64_t kMostLeaves = std::uint64_t{1} << 20;
  ValueBudget budget(kMostLeaves);
  StateDict leaves = flatten(root, budget);
  for (ContainerNote& note : leaves.containers) {
    note.entries_before =
        manifest.state.entries.size() + std::min(note.entries_before, leaves.entries.size());
    manifest.state.containers.push_back(std::move(note));
  }
  for (StateEntry& entry : leaves.entries) {
    entry.rank = rank;
    own_tensors(manifest, entry);
    manifest.state.entries.push_back(std::move(entry));
  }
}

std::int64_t size_of(const ResultRanks& ranks, std::string_view dim) {
  if (!ranks.mesh) return 1;
  for (const MeshDim& known : ranks.mesh->dims())
    if (known.name == dim) return known.size;
  return 1;
}

}  // namespace

void random_states_to_ranks(Manifest& manifest, const ResultRanks& ranks) {
  const std::int64_t tp = size_of(ranks, "tp"), pp = size_of(ranks, "pp"),
                     ep = size_of(ranks, "ep");
  std::map<std::int64_t, Value> own;  // by place
  std::vector<bool> taken(manifest.state.entries.size());
  for (std::size_t i = 0; i < taken.size(); ++i) {
    const StateEntry& entry = manifest.state.entries[i];
    const auto object = parse_sharded_object(entry.name);
    if (!object || object->key != kRandomState || object->grid.size() != 2 ||
        !is_grid(object->grid, {pp, tp}) || entry.value.kind() != Value::Kind::kList ||
        entry.value.as_list().size() != 1)
      continue;
    taken[i] = true;
    own.emplace(object->place[0] * tp + object->place[1], entry.value.as_list()[0]);
  }
  if (static_cast<std::int64_t>(own.size()) != tp * pp) return;
  take_out(manifest.state, taken);
  for (const auto& [place, value] : own)
    for (std::int64_t e = 0; e < ep; ++e) {
      const std::int64_t rank = ((place / tp) * ep + e) * tp + place % tp;
      const Value rank_key = Value::string(fmt::format("rank_{}", rank));
      const Value held = e == 0 ? value : copied(manifest, value);
      const Value under = tp * pp * ep == 1 ? held : Value::dict({{rank_key, held}});
      append_leaves(manifest, Value::dict({{Value::string(std::string(kRandomState)), under}}),
                    rank);
    }
}

void random_states_to_objects(Manifest& manifest, const ResultRanks& ranks) {
  const std::int64_t tp = size_of(ranks, "tp"), pp = size_of(ranks, "pp");
  std::map<std::int64_t, StateDict> own;
  std::vector<bool> taken(manifest.state.entries.size());
  for (std::size_t i = 0; i < taken.size(); ++i) {
    const StateEntry& entry = manifest.state.entries[i];
    if (entry.path.size() < 2 || !is_key(entry.path[0], kRandomState)) continue;
    const bool alone = tp * pp == 1 && entry.path[1].kind == PathItem::Kind::kIndex;
    const auto rank = alone ? std::optional<std::int64_t>(0) : entry.rank;
    if (!rank || (!alone && !is_key(entry.path[1], fmt::format("rank_{}", *rank)))) return;
    taken[i] = true;
    const Path path(entry.path.begin() + (alone ? 1 : 2), entry.path.end());
    own[*rank].entries.push_back({dotted(path), path, entry.value});
  }
  if (own.empty() || static_cast<std::int64_t>(own.size()) != tp * pp ||
      own.rbegin()->first != tp * pp - 1)
    return;
  const auto is_of_them = [](const ContainerNote& note) {
    return !note.path.empty() && is_key(note.path[0], kRandomState);
  };
  std::vector<ContainerNote> notes;
  std::ranges::copy_if(manifest.state.containers, std::back_inserter(notes), is_of_them);
  std::erase_if(manifest.state.containers, is_of_them);
  take_out(manifest.state, taken);
  for (auto& [rank, state] : own) {
    for (const ContainerNote& note : notes) {
      const bool alone =
          tp * pp == 1 && note.path.size() > 1 && note.path[1].kind == PathItem::Kind::kIndex;
      if (!alone && (note.path.size() < 3 || !is_key(note.path[1], fmt::format("rank_{}", rank))))
        continue;
      ContainerNote copy = note;
      copy.path.erase(copy.path.begin(), copy.path.begin() + (alone ? 1 : 2));
      copy.entries_before = static_cast<std::size_t>(-1);
      state.containers.push_back(std::move(copy));
    }
    StateEntry entry;
    entry.name = fmt::format("{}/shard_{}.{}_{}.{}", kRandomState, rank / tp, rank % tp, pp, tp);
    entry.path = {key_item(entry.name)};
    entry.value = Value::list({unflatten(state)});
    own_tensors(manifest, entry);
    manifest.state.entries.push_back(std::move(entry));
  }
}

}  // namespace tessera
