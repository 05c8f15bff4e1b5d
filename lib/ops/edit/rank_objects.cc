#include "lib/ops/edit/rank_objects.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/state/roles.h>

#include <set>
#include <utility>

#include "lib/format/megatron_dist/sharded_object.h"
#include "lib/format/megatron_torch/args.h"

namespace tessera {
namespace {

using megatron_dist::parse_sharded_object;
using megatron_dist::ShardedObject;

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
    const StateEntry* stated = manifest.state.find("args");
    const megatron_torch::Args args(stated != nullptr ? stated->value : Value());
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

}  // namespace tessera
