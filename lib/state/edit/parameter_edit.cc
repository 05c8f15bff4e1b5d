#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/state/optim_state.h>
#include <tessera/state/parameter_edit.h>

#include <algorithm>
#include <optional>
#include <set>
#include <unordered_map>

#include "lib/state/edit/fqn_place.h"
#include "lib/state/edit/group_members.h"
#include "lib/state/edit/state_follows.h"

namespace tessera {
namespace {

/// One place that exists once per parameter: a model root, a leaf of an optimizer, an option.
struct Site {
  std::size_t edit = 0;
  Role role = Role::kModel;
  std::int32_t root = -1;
  std::string label;  // the model's prefix, or the leaf
  auto operator<=>(const Site&) const = default;
};

class Editor {
 public:
  Editor(Manifest& manifest, std::span<const ParameterEdit> edits, const SameTensors& same)
      : manifest_(manifest),
        roles_(find_roles(manifest.state)),
        edits_(edits),
        same_(same),
        replaced_(manifest.state.entries.size()) {
    for (std::size_t e = 0; e < edits.size(); ++e) {
      for (std::size_t o = 0; o < edits[e].olds.size(); ++o) {
        if (places_.try_emplace(edits[e].olds[o].fqn, e, o).second) continue;
        fail(Code::kInvalidArgument,
             fmt::format("two rules take \"{}\"", printable(edits[e].olds[o].fqn)));
      }
    }
  }

  void apply() {
    number_ids();
    collect_sites();
    check_state_is_whole();
    for (const auto& [site, entries] : sites_) replace(site, entries);
    rewrite_groups();
    renumber_ids();
    assemble();
  }

 private:
  using Entries = std::vector<std::optional<std::size_t>>;  // per old parameter of the edit

  bool is_by_id(std::int32_t root) const {
    return root >= 0 &&
           roles_.optimizers[static_cast<std::size_t>(root)].dialect == OptimDialect::kById;
  }

  /// The FQNs behind ids, and the members of every group by them.
  void number_ids() {
    const std::vector<OptimState> states = canonical_optim_states(manifest_, roles_);
    std::vector<GroupEdit> edits;
    for (const ParameterEdit& edit : edits_) {
      GroupEdit& group = edits.emplace_back();
      for (const OldParameter& old : edit.olds) group.olds.push_back(old.fqn);
      for (const NewParameter& made : edit.made) group.made.push_back(made.fqn);
    }
    for (std::size_t r = 0; r < states.size(); ++r) {
      members_.emplace_back(edits);
      if (is_by_id(static_cast<std::int32_t>(r))) name_ids(states[r], members_.back());
    }
  }

  /// In the order of the groups, which is the one ids are given out in.
  void name_ids(const OptimState& state, MemberLists& members) const {
    require_names(manifest_, state, "leave the optimizer out with --only model");
    std::map<std::string_view, const OptimParameter*> by_id;
    for (const OptimParameter& parameter : state.parameters)
      by_id[parameter.stored_key] = &parameter;
    for (const OptimGroup& group : state.groups) {
      for (const std::string& id : group.stored_members) {
        const auto found = by_id.find(id);
        if (found == by_id.end()) continue;
        members.name_id(id, found->second->fqn);
        by_id.erase(found);
      }
    }
    for (const OptimParameter& parameter : state.parameters)
      if (by_id.contains(parameter.stored_key))
        members.name_id(parameter.stored_key, parameter.fqn);
  }

  /// The FQN an entry belongs to: ids by their parameter.
  std::string fqn_of(const EntryRole& role) const {
    if (!is_by_id(role.root)) return role.fqn;
    return members_[static_cast<std::size_t>(role.root)].fqn_of(role.fqn);
  }

  void collect_sites() {
    for (std::size_t i = 0; i < roles_.entries.size(); ++i) {
      const EntryRole& role = roles_.entries[i];
      if (role.fqn.empty()) continue;
      const auto place = places_.find(fqn_of(role));
      if (place == places_.end()) continue;
      const auto [edit, old] = place->second;
      const StateEntry& entry = manifest_.state.entries[i];
      Site site{edit, role.role, role.root, role.leaf};
      if (role.root < 0) site.label = entry.name.substr(0, fqn_position(entry, role));
      Entries& entries = sites_[site];
      entries.resize(edits_[edit].olds.size());
      entries[old] = i;
    }
  }

  /// A parameter without any state is legal; parts with and parts without cannot be one.
  void check_state_is_whole() const {
    for (const auto& [site, entries] : sites_) {
      for (std::size_t o = 0; o < entries.size(); ++o) {
        if (entries[o]) continue;
        const auto there =
            std::ranges::find_if(entries, [](const auto& e) { return e.has_value(); });
        const auto& olds = edits_[site.edit].olds;
        fail(Code::kInvalidArgument,
             fmt::format("\"{}\" has {}, \"{}\" does not: they cannot become one",
                         manifest_.state.entries[**there].name,
                         site.root < 0 ? "a weight" : "this state", printable(olds[o].fqn)));
      }
    }
  }

  void replace(const Site& site, const Entries& entries) {
    const ParameterEdit& edit = edits_[site.edit];
    std::vector<StateEntry> fresh;
    for (const NewParameter& made : edit.made) {
      const std::size_t first = *entries[0];
      StateEntry entry = manifest_.state.entries[first];
      const EntryRole& role = roles_.entries[first];
      const std::string key = is_by_id(site.root)
                                  ? members_[static_cast<std::size_t>(site.root)].new_id(made.fqn)
                                  : made.fqn;
      const std::size_t at = fqn_position(entry, role);
      entry.path = renamed_path(entry.path, at, role.fqn.size(), key);
      entry.name = renamed(entry.name, role.fqn, key, at);
      entry.value = new_value(edit, made, entries, site, entry.name);
      fresh.push_back(std::move(entry));
    }
    for (const auto& entry : entries) replaced_[*entry].emplace();
    replaced_[**std::ranges::min_element(entries)].emplace(std::move(fresh));
  }

  const Shape* shape_of(std::size_t entry) const {
    const Value& value = manifest_.state.entries[entry].value;
    return value.is_tensor() ? &manifest_.tensors[value.tensor_index()].spec.shape : nullptr;
  }

  Value new_value(const ParameterEdit& edit, const NewParameter& made, const Entries& entries,
                  const Site& site, const std::string& name) {
    bool follows = site.role != Role::kOptimGroup && site.label != "step";
    bool counts = true;  // one element or a plain value each
    for (std::size_t o = 0; o < entries.size(); ++o) {
      const Shape* shape = shape_of(*entries[o]);
      follows = follows && shape != nullptr && *shape == edit.olds[o].shape;
      counts = counts && (shape == nullptr || shape->numel() == 1);
    }
    if (follows) return Value::tensor(build(made, entries, name));
    if (site.root < 0 || (!counts && !takes_all(edit))) {
      fail(Code::kUnsupported,
           fmt::format("\"{}\" does not have its parameter's shape, so it cannot follow it",
                       manifest_.state.entries[*entries[0]].name),
           "leave it out with --exclude");
    }
    return common_value(entries, name);
  }

  std::uint32_t build(const NewParameter& made, const Entries& entries, const std::string& name) {
    std::vector<TensorPiece> pieces = made.pieces;
    for (TensorPiece& piece : pieces) {
      if (piece.source == kNoTensor) continue;
      piece.source = manifest_.state.entries[*entries[piece.source]].value.tensor_index();
    }
    return build_tensor(manifest_, name, made.shape, pieces);
  }

  /// What all old parameters agree on.
  Value common_value(const Entries& entries, const std::string& name) {
    const StateEntry& first = manifest_.state.entries[*entries[0]];
    for (const auto& other : entries) {
      const StateEntry& entry = manifest_.state.entries[*other];
      if (&entry == &first) continue;
      const bool equal = entry.value.is_tensor() && first.value.is_tensor()
                             ? same_(first.value.tensor_index(), entry.value.tensor_index())
                             : entry.value == first.value;
      if (!equal) {
        fail(Code::kInvalidArgument,
             fmt::format("\"{}\" and \"{}\" differ: their parameters cannot become one", first.name,
                         entry.name));
      }
    }
    if (!first.value.is_tensor()) return first.value;
    const std::uint32_t source = first.value.tensor_index();
    const Shape shape = manifest_.tensors[source].spec.shape;
    return Value::tensor(build_tensor(manifest_, name, shape, {{whole_piece(manifest_, source)}}));
  }

  void rewrite_groups() {
    for (std::size_t i = 0; i < roles_.entries.size(); ++i) {
      const EntryRole& role = roles_.entries[i];
      StateEntry& entry = manifest_.state.entries[i];
      const bool names = role.role == Role::kOptimGroup && role.leaf == "param_names" &&
                         entry.value.kind() == Value::Kind::kList;
      if (role.root < 0 || (!lists_members(role, entry) && !names)) continue;
      MemberLists& members = members_[static_cast<std::size_t>(role.root)];
      entry.value = names ? members.rewrite_names(entry.value) : members.rewrite(entry.value);
    }
  }

  /// Ids that stay move where others were added or taken out before them.
  void renumber_ids() {
    for (std::size_t i = 0; i < roles_.entries.size(); ++i) {
      const EntryRole& role = roles_.entries[i];
      if (replaced_[i] || role.role != Role::kOptimState || !is_by_id(role.root)) continue;
      const MemberLists& members = members_[static_cast<std::size_t>(role.root)];
      const std::string id = members.kept_id(role.fqn);
      if (id == role.fqn) continue;
      StateEntry& entry = manifest_.state.entries[i];
      const std::size_t at = fqn_position(entry, role);
      entry.path = renamed_path(entry.path, at, role.fqn.size(), id);
      entry.name = renamed(entry.name, role.fqn, id, at);
      if (entry.value.is_tensor()) manifest_.tensors[entry.value.tensor_index()].name = entry.name;
    }
  }

  void assemble() {
    std::vector<StateEntry> entries;
    std::vector<std::size_t> new_place;
    std::vector<bool> fresh;
    for (std::size_t i = 0; i < replaced_.size(); ++i) {
      new_place.push_back(entries.size());
      if (!replaced_[i]) {
        entries.push_back(std::move(manifest_.state.entries[i]));
      } else {
        for (StateEntry& entry : *replaced_[i]) entries.push_back(std::move(entry));
      }
      fresh.resize(entries.size(), replaced_[i].has_value());
    }
    for (ContainerNote& note : manifest_.state.containers)
      if (note.entries_before < new_place.size())
        note.entries_before = new_place[note.entries_before];
    manifest_.state.entries = std::move(entries);
    std::set<std::string_view> seen;
    for (const StateEntry& entry : manifest_.state.entries) {
      if (seen.insert(entry.name).second) continue;
      fail(Code::kInvalidArgument,
           fmt::format("two entries would be named \"{}\"", printable(entry.name)));
    }
    settle_renamed(manifest_.state, fresh);
    keep_entries(manifest_, std::vector<bool>(manifest_.state.entries.size(), true));
  }

  Manifest& manifest_;
  Roles roles_;
  std::span<const ParameterEdit> edits_;
  const SameTensors& same_;
  std::unordered_map<std::string, std::pair<std::size_t, std::size_t>> places_;  // edit, old
  std::map<Site, Entries> sites_;
  std::vector<MemberLists> members_;  // per optimizer root
  std::vector<std::optional<std::vector<StateEntry>>> replaced_;
};

}  // namespace

std::map<std::string, Shape> parameter_shapes(const Manifest& manifest) {
  const Roles roles = find_roles(manifest.state);
  std::map<std::string, Shape> model;
  std::map<std::string, Shape> optimizer;
  for (std::size_t i = 0; i < roles.entries.size(); ++i) {
    const EntryRole& role = roles.entries[i];
    const Value& value = manifest.state.entries[i].value;
    if (!value.is_tensor()) continue;
    const Shape& shape = manifest.tensors[value.tensor_index()].spec.shape;
    if (role.role == Role::kModel) model.emplace(role.fqn, shape);
    const bool by_id =
        role.root >= 0 &&
        roles.optimizers[static_cast<std::size_t>(role.root)].dialect == OptimDialect::kById;
    if (role.role == Role::kOptimState && !by_id && role.leaf != "step")
      optimizer.emplace(role.fqn, shape);
  }
  return model.empty() ? optimizer : model;
}

std::vector<Note> edit_parameters(Manifest& manifest, std::span<const ParameterEdit> edits,
                                  const SameTensors& same, OptimPolicy policy) {
  if (edits.empty()) return {};
  std::vector<Note> notes = settle_state(manifest, edits, policy);
  Editor(manifest, edits, same).apply();
  return notes;
}

}  // namespace tessera
