#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/state/optim_edit.h>
#include <tessera/state/optim_state.h>
#include <tessera/state/state_values.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "lib/state/edit/fqn_place.h"
#include "lib/state/edit/move_entry.h"
#include "lib/state/edit/optim_flatten.h"
#include "lib/state/edit/optim_place.h"
#include "lib/state/role_names.h"

namespace tessera {
namespace {

constexpr std::string_view kNames = "param_names";

PathItem id_item(const std::string& text) { return int_key_item(id_value(text).as_int()); }

/// Gives one optimizer of a manifest names or ids, and groups with lists of members.
class Rekeyer {
 public:
  Rekeyer(Manifest& manifest, const Roles& roles, std::size_t root, const OptimState& optim,
          OptimKeys keys)
      : manifest_(manifest),
        roles_(roles),
        root_(static_cast<std::int32_t>(root)),
        of_(roles.optimizers[root]),
        name_(of_.name),
        optim_(optim),
        to_ids_(keys == OptimKeys::kId) {}

  void run() {
    to_ids_ ? number() : name();
    std::vector<StateEntry> entries;
    std::vector<std::size_t> places;
    bool any_state = false;
    std::optional<std::size_t> groups;
    for (std::size_t i = 0; i < roles_.entries.size(); ++i) {
      places.push_back(entries.size());
      StateEntry& entry = manifest_.state.entries[i];
      const EntryRole& role = roles_.entries[i];
      const bool state = role.root == root_ && role.role == Role::kOptimState;
      const bool group = role.root == root_ && role.role == Role::kOptimGroup;
      if (group && of_.dialect == OptimDialect::kFlat) {
        if (!groups) {
          groups = i;
          add_groups(entries);
        }
        continue;
      }
      if (state) move_state(entry, role);
      any_state |= state;
      if (group && lists_members(role, entry)) entry.value = members(entry.value);
      entries.push_back(std::move(entry));
    }
    places.push_back(entries.size());
    if (groups && !any_state) note_empty_state(entries[places[*groups]], *groups);
    manifest_.state.entries = std::move(entries);
    move_containers(places);
    // Options of one group had a tensor for each of its members: those that nothing has now go.
    if (groups) keep_entries(manifest_, std::vector<bool>(manifest_.state.entries.size(), true));
    if (to_ids_) keep_names();
  }

 private:
  /// Where order and shapes do not give the names back, the groups record them, as torch.optim does.
  void keep_names() {
    if (names_come_back()) return;
    record_names();
    if (names_come_back()) return;
    fail(
        Code::kUnsupported,
        fmt::format("{}: with ids alone, nothing would show which state belongs to which parameter",
                    optimizer_text(name_)),
        "keep the names: leave out --optim-keys");
  }

  /// Does the state as it is now say of each id what it was?
  bool names_come_back() const {
    const OptimState now = canonical_optim_states(manifest_, find_roles(manifest_.state))
                               .at(static_cast<std::size_t>(root_));
    if (now.dialect != OptimDialect::kById) return false;
    std::map<std::string_view, const OptimParameter*> by_id;
    for (const OptimParameter& p : now.parameters) by_id.emplace(p.stored_key, &p);
    return std::ranges::all_of(optim_.parameters, [&](const OptimParameter& p) {
      const auto id = keys_.find(p.stored_key);
      const auto found = id == keys_.end() ? by_id.end() : by_id.find(id->second);
      return found != by_id.end() && found->second->fqn == p.fqn && found->second->inferred &&
             found->second->certain;
    });
  }

  /// Adds `param_names` to groups that have none, in the order of their ids.
  void record_names() {
    const Roles roles = find_roles(manifest_.state);
    std::vector<StateEntry> entries;
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < roles.entries.size(); ++i) {
      places.push_back(entries.size());
      entries.push_back(std::move(manifest_.state.entries[i]));
      const EntryRole& role = roles.entries[i];
      if (role.root != root_ || !lists_members(role, entries.back())) continue;
      if (role.group < 0) {
        entries.back().value = with_names(entries.back().value);
        continue;
      }
      const OptimGroup* group = group_of(role.group);
      if (group == nullptr || group->find(kNames) != nullptr) continue;
      StateEntry named = entries.back();
      named.path.back() = key_item(kNames);
      named.name = dotted(named.path);
      named.value = names_of(*group);
      entries.push_back(std::move(named));
    }
    places.push_back(entries.size());
    manifest_.state.entries = std::move(entries);
    for (ContainerNote& note : manifest_.state.containers)
      if (note.entries_before < places.size()) note.entries_before = places[note.entries_before];
  }

  const OptimGroup* group_of(std::int64_t index) const {
    const auto found = std::ranges::find(optim_.groups, index, &OptimGroup::index);
    return found == optim_.groups.end() ? nullptr : &*found;
  }
  static Value names_of(const OptimGroup& group) {
    ValueList names;
    for (const std::string& fqn : group.members) names.push_back(Value::string(fqn));
    return Value::list(std::move(names));
  }
  /// All groups as one value.
  Value with_names(const Value& groups) const {
    ValueList items;
    for (const Value& item : groups.as_list()) {
      const OptimGroup* group = group_of(static_cast<std::int64_t>(items.size()));
      if (group == nullptr || !item.is_dict() || group->find(kNames) != nullptr) {
        items.push_back(item);
        continue;
      }
      ValueDict options = item.as_dict();
      options.emplace_back(Value::string(std::string(kNames)), names_of(*group));
      items.push_back(Value::dict_of(item.kind(), std::move(options), item.attributes()));
    }
    return Value::list(std::move(items), groups.kind());
  }

  /// Stored key -> FQN.
  void name() {
    require_names(manifest_, optim_, "keep the ids: leave out --optim-keys");
    for (const OptimParameter& p : optim_.parameters) keys_[p.stored_key] = p.fqn;
  }

  /// Stored key -> position in the groups.
  void number() {
    if (optim_.groups.empty())
      fail(Code::kUnsupported,
           fmt::format("{} has no param_groups: nothing says how its parameters are numbered",
                       optimizer_text(name_)),
           "keep the names: leave out --optim-keys");
    std::size_t next = 0;
    for (const OptimGroup& group : optim_.groups)
      for (const std::string& member : group.stored_members)
        if (keys_.emplace(member, std::to_string(next)).second) ++next;
    for (const OptimParameter& p : optim_.parameters)
      if (!p.leaves.empty() && !keys_.contains(p.stored_key))
        fail(Code::kUnsupported,
             fmt::format("{} keeps state of \"{}\", which no group lists: it has no number",
                         optimizer_text(name_), printable(p.stored_key)),
             "leave it out (--exclude), or keep the names");
  }

  PathItem item_of(const std::string& key) const {
    return to_ids_ ? id_item(keys_.at(key)) : key_item(keys_.at(key));
  }

  void move_state(StateEntry& entry, const EntryRole& role) {
    const bool by_name_alone = entry.path.size() == 1 && !starts_with_root(entry.path[0].text());
    const OptimPlace place = optim_place(entry, role, of_);
    if (by_name_alone && of_.dialect != OptimDialect::kFlat) {
      const std::string name =
          fmt::format("{}{}state.{}{}{}", name_, name_.empty() ? "" : ".", keys_.at(role.fqn),
                      role.leaf.empty() ? "" : ".", role.leaf);
      return move_entry(manifest_, entry, {key_item(name)});
    }
    Path path = below(place.root, {key_item("state"), item_of(role.fqn)});
    path.insert(path.end(), place.rest.begin(), place.rest.end());
    move_entry(manifest_, entry, std::move(path));
  }

  /// Where nothing has state, the flattened form has no `state`, which torch.optim asks for.
  void note_empty_state(const StateEntry& group, std::size_t entries_before) {
    const auto at = static_cast<std::ptrdiff_t>(optim_word(group.path, name_).value());
    manifest_.state.containers.push_back(
        {below(Path(group.path.begin(), group.path.begin() + at), "state"),
         Value::Kind::kDict,
         {},
         entries_before});
  }

  void move_containers(const std::vector<std::size_t>& places) {
    std::vector<ContainerNote> moved;
    for (ContainerNote& note : manifest_.state.containers) {
      auto path = moved_container(note.path);
      if (!path) continue;
      note.path = std::move(*path);
      if (note.entries_before < places.size()) note.entries_before = places[note.entries_before];
      moved.push_back(std::move(note));
    }
    manifest_.state.containers = std::move(moved);
  }

  /// nullopt: a container of the old form, or of options that another parameter has as well.
  std::optional<Path> moved_container(const Path& path) const {
    const auto at = optim_word(path, name_);
    if (!at) return path;
    const std::string word = path[*at].text();
    const auto join = [&](std::initializer_list<PathItem> items, const Path& leaf,
                          std::size_t from) {
      Path made = below(Path(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(*at)), items);
      made.insert(made.end(), leaf.begin(), leaf.end());
      made.insert(made.end(), path.begin() + static_cast<std::ptrdiff_t>(from), path.end());
      return made;
    };
    if (starts_with_root(word)) {
      const auto spelled = [&word](const auto& known) {
        return word.substr(word.find('.') + 1).starts_with(known.first + ".");
      };
      if (word.starts_with("state.")) {
        const auto key = std::ranges::find_if(keys_, spelled);
        return key == keys_.end() ? path
                                  : join({key_item("state"), item_of(key->first)},
                                         flat_leaf(word, key->first), *at + 1);
      }
      const auto group = std::ranges::find_if(spoken_for_, spelled);
      if (group == spoken_for_.end()) return std::nullopt;
      return join({key_item("param_groups"), index_item(group->second)},
                  flat_leaf(word, group->first), *at + 1);
    }
    if (word != "state" || *at + 1 >= path.size()) return path;
    if (of_.dialect == OptimDialect::kLeafFirst) return std::nullopt;
    const std::string key = path[*at + 1].text();
    return keys_.contains(key) ? join({key_item("state"), item_of(key)}, {}, *at + 2) : path;
  }

  /// One group's `params`, or all groups as one value.
  Value members(const Value& value) const {
    ValueList items;
    for (const Value& item : value.as_list()) {
      if (item.is_dict()) {
        ValueDict group = item.as_dict();
        for (auto& [key, option] : group)
          if (key.is_string() && key.as_string() == "params" && option.kind() == Value::Kind::kList)
            option = members(option);
        items.push_back(Value::dict_of(item.kind(), std::move(group), item.attributes()));
        continue;
      }
      const std::string key = item.is_int()      ? std::to_string(item.as_int())
                              : item.is_string() ? item.as_string()
                                                 : std::string();
      const auto found = keys_.find(key);
      if (found == keys_.end())
        items.push_back(item);
      else
        items.push_back(to_ids_ ? id_value(found->second) : Value::string(found->second));
    }
    return Value::list(std::move(items), value.kind());
  }

  /// Groups where options stood flattened, one by one for each parameter: those of the first one.
  void add_groups(std::vector<StateEntry>& entries) {
    std::map<std::string, std::vector<std::size_t>> options;
    for (std::size_t i = 0; i < roles_.entries.size(); ++i)
      if (const EntryRole& role = roles_.entries[i];
          role.root == root_ && role.role == Role::kOptimGroup)
        options[role.fqn].push_back(i);
    for (const OptimGroup& group : optim_.groups) {
      const auto g = static_cast<std::int64_t>(spoken_for_.size());
      const std::string speaker = speaker_of(group, options);
      spoken_for_.emplace(speaker, g);
      Path place;
      for (const std::size_t i : options.at(speaker)) {
        OptimPlace from = optim_place(manifest_.state.entries[i], roles_.entries[i], of_);
        place = below(from.root, {key_item("param_groups"), index_item(g)});
        Path path = place;
        path.insert(path.end(), from.rest.begin(), from.rest.end());
        move_entry(manifest_, entries.emplace_back(manifest_.state.entries[i]), std::move(path));
      }
      ValueList items;
      for (const std::string& member : group.stored_members)
        items.push_back(to_ids_ ? id_value(keys_.at(member)) : Value::string(keys_.at(member)));
      StateEntry& params = entries.emplace_back();
      params.value = Value::list(std::move(items));
      move_entry(manifest_, params, below(place, "params"));
    }
  }

  /// Under whose name the options of the group's first member stand: Megatron-FSDP cuts a gated
  /// matrix in halves, "_w" and "_v", not its options.
  static std::string speaker_of(const OptimGroup& group,
                                const std::map<std::string, std::vector<std::size_t>>& options) {
    const std::string& first = group.stored_members.at(0);
    return options.contains(first) ? first : first.substr(0, first.size() - 2);
  }

  Manifest& manifest_;
  const Roles& roles_;
  std::int32_t root_;
  const OptimizerRoot& of_;
  const std::string& name_;
  const OptimState& optim_;
  bool to_ids_;
  std::map<std::string, std::string> keys_;         // stored key -> new one
  std::map<std::string, std::int64_t> spoken_for_;  // kFlat: whose options a group's are -> group
};

Note inferred_names(const OptimState& optim) {
  return {Finding::kRekey, Severity::kInfo,
          fmt::format("{}: {} ids became names, by what the groups record, else by order and shape",
                      optimizer_text(optim.root), optim.parameters.size()),
          "", ""};
}

Note grouped_options(const OptimState& optim) {
  return {Finding::kRekey, Severity::kInfo,
          fmt::format("{}: options of {} parameters became {} group{}", optimizer_text(optim.root),
                      optim.parameters.size(), optim.groups.size(),
                      optim.groups.size() == 1 ? "" : "s"),
          "", ""};
}

/// Rekeys the optimizer at `root` where it is not keyed that way yet.
void rekey(Manifest& manifest, std::size_t root, OptimKeys keys, std::vector<Note>& notes) {
  const Roles roles = find_roles(manifest.state);
  const OptimDialect dialect = roles.optimizers[root].dialect;
  if (dialect == (keys == OptimKeys::kId ? OptimDialect::kById : OptimDialect::kByFqn)) return;
  const OptimState optim = canonical_optim_states(manifest, roles).at(root);
  Rekeyer(manifest, roles, root, optim, keys).run();
  if (dialect == OptimDialect::kById) notes.push_back(inferred_names(optim));
  if (dialect == OptimDialect::kFlat) notes.push_back(grouped_options(optim));
}

}  // namespace

std::vector<Note> rekey_optimizers(Manifest& manifest, OptimKeys keys) {
  std::vector<Note> notes;
  if (keys == OptimKeys::kKeep) return notes;
  if (keys == OptimKeys::kFlat) expand_state_values(manifest);
  const std::size_t count = find_roles(manifest.state).optimizers.size();
  if (count == 0) fail(Code::kUnsupported, "there is no optimizer here to rekey");
  for (std::size_t root = 0; root < count; ++root) {
    if (keys != OptimKeys::kFlat) {
      rekey(manifest, root, keys, notes);
    } else if (!is_flattened(manifest, root)) {
      rekey(manifest, root, OptimKeys::kFqn, notes);
      notes.push_back(flatten_optimizer(manifest, root));
    }
  }
  check_unique(manifest.state, Code::kUnsupported);
  return notes;
}

std::vector<Note> group_optimizers(Manifest& manifest) {
  std::vector<Note> notes;
  const std::size_t count = find_roles(manifest.state).optimizers.size();
  for (std::size_t root = 0; root < count; ++root)
    if (find_roles(manifest.state).optimizers[root].dialect == OptimDialect::kFlat)
      rekey(manifest, root, OptimKeys::kFqn, notes);
  if (!notes.empty()) check_unique(manifest.state, Code::kUnsupported);
  return notes;
}

}  // namespace tessera
