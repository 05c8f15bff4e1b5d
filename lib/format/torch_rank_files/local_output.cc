#include "lib/format/torch_rank_files/local_output.h"

#include <fmt/format.h>
#include <tessera/base/checked.h>
#include <tessera/base/error.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "lib/format/torch_files/flat_tensors.h"
#include "lib/format/torch_rank_files/parts.h"
#include "lib/format/torch_rank_files/sharded_pickle.h"

namespace tessera::rank_files {
namespace {

void push(StateDict& state, const Path& path, std::ptrdiff_t depth, Value value) {
  Path own(path.begin() + depth, path.end());
  std::string name = dotted(own);
  state.entries.push_back({std::move(name), std::move(own), std::move(value)});
}

bool is_member_list(const Path& path, const Path& prefix) {
  return path.size() == prefix.size() + 3 && path.back().key == "params" &&
         path[prefix.size()].key == "param_groups";
}

/// What stands behind <prefix>.state.<fqn>.
Path leaf_path(const Path& path, std::size_t depth) {
  return Path(path.begin() + static_cast<std::ptrdiff_t>(depth) + 2, path.end());
}

/// The root's path: the run of an entry's items that spells its name.
std::optional<Path> root_path(const Path& path, const std::string& name) {
  Path prefix;
  for (const PathItem& item : path) {
    if (dotted(prefix) == name) return prefix;
    prefix.push_back(item);
  }
  return std::nullopt;
}

}  // namespace

std::unique_ptr<LocalOutput> LocalOutput::make(const Manifest& source, const TargetRequest& request,
                                               const Mesh& mesh, const std::vector<bool>& kept,
                                               std::vector<Note>& notes) {
  const auto flavour = source.provenance.find(std::string(kFlavour)),
             layout = source.provenance.find(std::string(kFlatLayout));
  if (flavour == source.provenance.end() || layout == source.provenance.end()) return nullptr;
  if (flavour->second != kLocal && flavour->second != kLocalOrig) return nullptr;
  if (mesh.rank() != 1 || !request.placements.empty() || !request.replicate.empty()) return nullptr;
  std::unique_ptr<LocalOutput> out(new LocalOutput(source, request.steps, mesh.world_size()));
  out->orig_ = flavour->second == kLocalOrig;
  out->record_ = parse_flat_record(as_bytes(std::string_view(layout->second)));
  if (out->find_units(kept) && out->find_optimizers(kept)) {
    if (out->orig_) out->find_tied(kept);
    return out;
  }
  notes.push_back({Finding::kFlatNotRestored, Severity::kInfo,
                   "not every parameter of the flat parameters is there as it was, or their state "
                   "cannot share one: sharded tensors are written instead",
                   "", ""});
  return nullptr;
}

bool LocalOutput::is_shaped(std::size_t e, const Shape& shape) const {
  const Value& value = entry(e).value;
  return value.is_tensor() && source_.tensors[value.tensor_index()].spec.shape == shape &&
         source_.tensors[value.tensor_index()].quant < 0;
}

/// A module that an optimizer lists, or that no optimizer is there to leave out.
bool LocalOutput::is_trained(std::size_t unit) const {
  return optimizers_.empty() ||
         std::ranges::any_of(optimizers_, [unit](const Optimizer& optimizer) {
           return optimizer.unit_ids.contains(unit) ||
                  std::ranges::any_of(optimizer.ids,
                                      [unit](const auto& id) { return id.first.first == unit; });
         });
}

std::string LocalOutput::record_text() const {
  FlatRecord record = record_;
  record.optimizers.clear();
  for (const Optimizer& optimizer : optimizers_) {
    std::vector<std::string>& names = record.optimizers[dotted(optimizer.prefix)];
    names.resize(optimizer.unit_ids.size() + optimizer.ids.size());
    for (const auto& [unit, id] : optimizer.unit_ids)
      names[static_cast<std::size_t>(id)] = units_[unit].name;
    for (const auto& [place, id] : optimizer.ids)
      names[static_cast<std::size_t>(id)] = units_[place.first].parameters[place.second].fqn;
  }
  return dump_flat_record(record);
}

bool LocalOutput::find_units(const std::vector<bool>& kept) {
  std::map<std::string, std::size_t> by_name;
  for (std::size_t e = 0; e < kept.size(); ++e)
    if (kept[e] && entry(e).value.is_tensor()) by_name.emplace(entry(e).name, e);
  const FlatParameter& first = record_.units.front().parameters.front();
  for (const auto& [name, e] : by_name) {
    const Path& path = entry(e).path;
    if (path.empty() || path.back().key != first.fqn || !is_shaped(e, first.shape)) continue;
    prefix_.assign(path.begin(), path.end() - 1);
    break;
  }
  for (const FlatUnit& known : record_.units) {
    Unit unit;
    unit.name = known.name;
    unit.parameters = known.parameters;
    unit.first_entry = kept.size();
    for (const FlatParameter& parameter : known.parameters) {
      Path path = prefix_;
      path.push_back(key_item(parameter.fqn));
      const auto found = by_name.find(dotted(path));
      if (found == by_name.end() || !is_shaped(found->second, parameter.shape)) return false;
      const Member member{units_.size(), unit.tensors.size()};
      unit.tensors.push_back(entry(found->second).value.tensor_index());
      unit.dtype = source_.tensors[unit.tensors.front()].spec.dtype;
      if (source_.tensors[unit.tensors.back()].spec.dtype != unit.dtype) return false;
      unit.first_entry = std::min(unit.first_entry, found->second);
      unit.last_entry = std::max(unit.last_entry, found->second);
      weights_.emplace(found->second, member);
      by_fqn_.emplace(parameter.fqn, member);
    }
    unit.layout.emplace(unit.parameters, world_size_, std::max<std::int64_t>(1, known.alignment));
    unit.numel = unit.layout->unpadded_numel();
    if (orig_) unit.numel = unit.layout->shard_numel() * world_size_;
    units_.push_back(std::move(unit));
  }
  return true;
}

bool LocalOutput::find_optimizers(const std::vector<bool>& kept) {
  const Roles roles = find_roles(source_.state);
  for (std::size_t r = 0; r < roles.optimizers.size(); ++r) {
    const OptimizerRoot& root = roles.optimizers[r];
    if (root.dialect != OptimDialect::kByFqn || !root.has_groups || root.groups_as_one_value)
      return false;
    Optimizer optimizer;
    bool found = false;
    for (std::size_t e = 0; e < kept.size() && !found; ++e) {
      if (!kept[e] || roles.entries[e].root != static_cast<std::int32_t>(r)) continue;
      const auto prefix = root_path(entry(e).path, root.name);
      if (prefix) optimizer.prefix = *prefix;
      found = prefix.has_value();
    }
    if (!found) continue;
    if (!find_groups(optimizer, kept) || !find_leaves(optimizer, kept)) return false;
    optimizers_.push_back(std::move(optimizer));
  }
  return true;
}

bool LocalOutput::find_groups(Optimizer& optimizer, const std::vector<bool>& kept) {
  std::int64_t next = 0;
  std::map<std::size_t, std::size_t> listed;  // unit -> its parameters in this group
  for (std::size_t e = 0; e < kept.size(); ++e) {
    if (!kept[e] || !is_member_list(entry(e).path, optimizer.prefix) ||
        root_path(entry(e).path, dotted(optimizer.prefix)) != optimizer.prefix)
      continue;
    if (entry(e).value.kind() != Value::Kind::kList) return false;
    std::vector<std::int64_t>& members = optimizer.group_members[e];
    listed.clear();
    for (const Value& item : entry(e).value.as_list()) {
      const auto member = item.is_string() ? by_fqn_.find(item.as_string()) : by_fqn_.end();
      if (member == by_fqn_.end()) return false;
      const auto [unit, parameter] = member->second;
      const bool is_new = orig_ ? optimizer.ids.emplace(std::pair(unit, parameter), next).second
                                : optimizer.unit_ids.emplace(unit, next).second;
      if (is_new) members.push_back(next++);
      if (!is_new && (orig_ || !listed.contains(unit))) return false;
      ++listed[unit];
    }
    // A flat parameter is in one group, whole.
    for (const auto& [unit, count] : listed)
      if (!orig_ && count != units_[unit].parameters.size()) return false;
  }
  return true;
}

bool LocalOutput::find_leaves(Optimizer& optimizer, const std::vector<bool>& kept) {
  const std::size_t depth = optimizer.prefix.size();
  optimizer.grouped = GroupedOptimizer(source_, steps_);
  for (Unit& unit : units_) {
    unit.first_parameter = optimizer.grouped.size();
    for (const FlatParameter& parameter : unit.parameters)
      optimizer.grouped.add_parameter(parameter.fqn, parameter.shape);
  }
  for (std::size_t e = 0; e < kept.size(); ++e) {
    const Path& path = entry(e).path;
    if (!kept[e] || path.size() < depth + 3 || path[depth].key != "state" ||
        !std::equal(optimizer.prefix.begin(), optimizer.prefix.end(), path.begin()))
      continue;
    const auto member = by_fqn_.find(path[depth + 1].key);
    if (member == by_fqn_.end()) return false;
    const auto [unit, parameter] = member->second;
    const Shape& shape = units_[unit].parameters[parameter].shape;
    const Value& value = entry(e).value;
    // A run is all that a rank can hold of an array; others must be scalars or values.
    if (value.is_tensor() && !is_shaped(e, shape) &&
        source_.tensors[value.tensor_index()].spec.shape.rank() > 0)
      return false;
    if (orig_ ? shape.numel() == 0 || !optimizer.ids.contains({unit, parameter})
              : !optimizer.unit_ids.contains(unit))
      return false;
    optimizer.places.emplace(e, Place(unit, parameter));
    if (orig_) continue;
    const std::string leaf = dotted(leaf_path(path, depth));
    optimizer.grouped.add_leaf(units_[unit].first_parameter + parameter, leaf, value);
    optimizer.first_entries.try_emplace({unit, leaf}, e);
  }
  return orig_ || unite_leaves(optimizer);
}

/// Zeros may stand for no state only if nothing else shows it: every parameter of a unit has
/// the same leaves, or none has any.
bool LocalOutput::unite_leaves(Optimizer& optimizer) const {
  return std::ranges::all_of(units_, [&](const Unit& unit) {
    std::vector<std::size_t> members(unit.parameters.size());
    std::iota(members.begin(), members.end(), unit.first_parameter);
    return !optimizer.grouped.unite(members);
  });
}

std::int64_t LocalOutput::valid_numel(const Unit& unit, std::int64_t rank) const {
  const std::int64_t shard = unit.layout->shard_numel();
  return std::clamp<std::int64_t>(unit.numel - rank * shard, 0, shard);
}

std::uint32_t LocalOutput::add_shard(ArchiveDraft& archive, const Unit& unit,
                                     const std::vector<std::uint32_t>& tensors, std::int64_t rank,
                                     std::int64_t numel) const {
  const DType dtype = source_.tensors[tensors.front()].spec.dtype;
  return archive
      .add({dtype, Shape{numel}},
           flat_storage(source_, unit.layout->pieces_of(rank), numel, dtype,
                        [&](std::size_t parameter) { return tensors[parameter]; }))
      .tensor_index();
}

std::optional<Chunk> LocalOutput::slice(const Unit& unit, std::size_t parameter,
                                        std::int64_t rank) const {
  const std::vector<FlatPiece> pieces = unit.layout->pieces_of(rank);
  const auto found = std::ranges::find(pieces, parameter, &FlatPiece::parameter);
  if (found == pieces.end()) return std::nullopt;
  return Chunk{Box::whole(unit.parameters[parameter].shape), found->begin, found->end};
}

bool LocalOutput::add(std::size_t e, std::int64_t rank, std::ptrdiff_t depth, ArchiveDraft& archive,
                      StateDict& state) {
  if (weights_.contains(e)) return add_weight(e, rank, depth, archive, state);
  if (const auto tied = tied_.find(e); tied != tied_.end()) {
    add_run(tied->second, e, rank, depth, archive, state);
    return true;
  }
  for (const Optimizer& optimizer : optimizers_)
    if (add_optimizer(optimizer, e, rank, depth, archive, state)) return true;
  return false;
}

/// A rank's run of a parameter, under the name of entry `e`.
void LocalOutput::add_run(const Member& member, std::size_t e, std::int64_t rank,
                          std::ptrdiff_t depth, ArchiveDraft& archive, StateDict& state) {
  const Unit& unit = units_[member.unit];
  const auto [known, is_new] = runs_.try_emplace({rank, member.unit, member.parameter}, 0);
  if (is_new) {
    const auto run = slice(unit, member.parameter, rank);
    std::vector<StoragePiece> storage;
    if (run) {
      StoragePiece piece;
      piece.tensor = unit.tensors[member.parameter];
      piece.chunk = *run;
      storage.push_back(std::move(piece));
    }
    known->second =
        archive.add({unit.dtype, Shape{run ? run->numel() : 0}}, std::move(storage)).tensor_index();
  }
  push(state, entry(e).path, depth, Value::tensor(known->second));
}

bool LocalOutput::add_weight(std::size_t e, std::int64_t rank, std::ptrdiff_t depth,
                             ArchiveDraft& archive, StateDict& state) {
  const Member member = weights_.at(e);
  const Unit& unit = units_[member.unit];
  if (orig_) add_run(member, e, rank, depth, archive, state);
  if (e != (orig_ ? unit.last_entry : unit.first_entry)) return true;
  std::optional<std::uint32_t> local;
  if (const std::int64_t valid = valid_numel(unit, rank); valid > 0)
    local = add_shard(archive, unit, unit.tensors, rank, valid);
  Path path = prefix_;
  path.push_back(key_item(unit.name));
  push(state, path, depth,
       flat_sharded_tensor_value(unit.dtype, unit.numel, unit.layout->shard_numel(), rank,
                                 world_size_, is_trained(member.unit), local));
  return true;
}

bool LocalOutput::add_optimizer(const Optimizer& optimizer, std::size_t e, std::int64_t rank,
                                std::ptrdiff_t depth, ArchiveDraft& archive, StateDict& state) {
  if (const auto members = optimizer.group_members.find(e);
      members != optimizer.group_members.end()) {
    ValueList ids;
    for (const std::int64_t id : members->second) ids.push_back(Value::integer(id));
    push(state, entry(e).path, depth, Value::list(std::move(ids)));
    return true;
  }
  const auto place = optimizer.places.find(e);
  if (place == optimizer.places.end()) return false;
  const auto [unit_index, parameter] = place->second;
  const Unit& unit = units_[unit_index];
  const std::size_t at = optimizer.prefix.size();
  if (!orig_) {
    add_unit_state(optimizer, e, rank, depth, archive, state);
    return true;
  }
  const auto run = slice(unit, parameter, rank);
  if (!run) return true;
  Path path = entry(e).path;
  path[at + 1] = int_key_item(optimizer.ids.at(place->second));
  const Value& value = entry(e).value;
  if (!is_shaped(e, unit.parameters[parameter].shape) ||
      unit.parameters[parameter].shape.rank() == 0) {
    push(state, path, depth, archive.take(value));
    return true;
  }
  StoragePiece piece;
  piece.tensor = value.tensor_index();
  piece.chunk = *run;
  const DType dtype = source_.tensors[piece.tensor].spec.dtype;
  push(state, path, depth, archive.add({dtype, Shape{run->numel()}}, {std::move(piece)}));
  return true;
}

void LocalOutput::add_unit_state(const Optimizer& optimizer, std::size_t e, std::int64_t rank,
                                 std::ptrdiff_t depth, ArchiveDraft& archive, StateDict& state) {
  const std::size_t number = optimizer.places.at(e).first;
  const Path rest = leaf_path(entry(e).path, optimizer.prefix.size());
  const std::string name = dotted(rest);
  // The first of the parameters' entries stands for all.
  if (optimizer.first_entries.at({number, name}) != e) return;
  Path path = optimizer.prefix;
  path.push_back(key_item("state"));
  path.push_back(int_key_item(optimizer.unit_ids.at(number)));
  path.insert(path.end(), rest.begin(), rest.end());
  const Unit& unit = units_[number];
  const GroupedState& leaves = optimizer.grouped.state(unit.first_parameter);
  const auto leaf = std::ranges::find(leaves, name, &GroupedLeaf::name);
  if (leaf->form != GroupedLeaf::Form::kSharded)
    return push(state, path, depth, archive.take(leaf->value));
  std::vector<std::uint32_t> tensors;
  for (std::size_t p = 0; p < unit.parameters.size(); ++p)
    tensors.push_back(
        optimizer.grouped
            .state(unit.first_parameter + p)[static_cast<std::size_t>(leaf - leaves.begin())]
            .tensors[0]);
  push(state, path, depth,
       Value::tensor(add_shard(archive, unit, tensors, rank, unit.layout->shard_numel())));
}

}  // namespace tessera::rank_files
