#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/state/optim_edit.h>
#include <tessera/state/optim_state.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "lib/state/edit/fqn_place.h"
#include "lib/state/role_names.h"

namespace tessera {
namespace {

constexpr std::string_view kNames = "param_names";

PathItem id_item(const std::string& text) { return int_key_item(id_value(text).as_int()); }

/// Rekeys one optimizer of a manifest.
class Rekeyer {
 public:
  Rekeyer(Manifest& manifest, const Roles& roles, std::size_t root, const OptimState& optim,
          OptimKeys keys)
      : manifest_(manifest),
        roles_(roles),
        root_(static_cast<std::int32_t>(root)),
        name_(roles.optimizers[root].name),
        dialect_(roles.optimizers[root].dialect),
        optim_(optim),
        to_ids_(keys == OptimKeys::kId) {}

  void run() {
    to_ids_ ? number() : name();
    std::vector<StateEntry> entries;
    bool groups_done = false;
    for (std::size_t i = 0; i < roles_.entries.size(); ++i) {
      StateEntry& entry = manifest_.state.entries[i];
      const EntryRole& role = roles_.entries[i];
      const bool group = role.root == root_ && role.role == Role::kOptimGroup;
      if (group && dialect_ == OptimDialect::kFlat) {
        if (!std::exchange(groups_done, true)) add_groups(entries, entry);
        continue;
      }
      if (role.root == root_ && role.role == Role::kOptimState) move_state(entry, role);
      if (group && lists_members(role, entry)) entry.value = members(entry.value);
      entries.push_back(std::move(entry));
    }
    manifest_.state.entries = std::move(entries);
    for (ContainerNote& note : manifest_.state.containers) move_container(note.path);
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

  /// Items of `path` before its `state` (or "state.<...>"); nullopt when the whole is one dotted
  /// key.
  std::optional<std::size_t> state_position(const Path& path) const {
    if (path.size() == 1 && !starts_with_root(path[0].text())) return std::nullopt;
    for (std::size_t i = 0; i < path.size(); ++i) {
      const std::string text = path[i].text();
      if (text != "state" && !text.starts_with("state.")) continue;
      if (dotted(Path(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(i))) == name_)
        return i;
    }
    return std::nullopt;
  }

  void move_state(StateEntry& entry, const EntryRole& role) {
    const auto at = state_position(entry.path);
    if (at) {
      Path path(entry.path.begin(), entry.path.begin() + static_cast<std::ptrdiff_t>(*at));
      path.push_back(key_item("state"));
      path.push_back(item_of(role.fqn));
      const bool nested = dialect_ == OptimDialect::kById || dialect_ == OptimDialect::kByFqn;
      if (nested)
        path.insert(path.end(), entry.path.begin() + static_cast<std::ptrdiff_t>(*at) + 2,
                    entry.path.end());
      else if (!role.leaf.empty())
        path.push_back(key_item(role.leaf));
      entry.path = std::move(path);
      entry.name = dotted(entry.path);
    } else {  // names alone, cut by no path
      entry.name = fmt::format("{}{}state.{}{}{}", name_, name_.empty() ? "" : ".",
                               keys_.at(role.fqn), role.leaf.empty() ? "" : ".", role.leaf);
      entry.path = {key_item(entry.name)};
    }
    for_each_tensor(entry.value, [&](std::uint32_t t) { manifest_.tensors[t].name = entry.name; });
  }

  void move_container(Path& path) const {
    const auto at = state_position(path);
    const bool nested = dialect_ == OptimDialect::kById || dialect_ == OptimDialect::kByFqn;
    if (!at || !nested || *at + 1 >= path.size() || path[*at].text() != "state") return;
    const std::string key = path[*at + 1].text();
    if (keys_.contains(key)) path[*at + 1] = item_of(key);
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

  /// Groups where options stood flattened, one by one for each parameter.
  void add_groups(std::vector<StateEntry>& entries, const StateEntry& first) const {
    Path root;
    for (const PathItem& item : first.path) {
      if (item.text().starts_with("param_groups.") || item.text() == "param_to_group_meta") break;
      root.push_back(item);
    }
    for (std::size_t g = 0; g < optim_.groups.size(); ++g) {
      const auto add = [&](const std::string& option, Value value) {
        StateEntry& made = entries.emplace_back();
        made.path = root;
        made.path.push_back(key_item("param_groups"));
        made.path.push_back(index_item(g));
        made.path.push_back(key_item(option));
        made.name = dotted(made.path);
        made.value = std::move(value);
        for_each_tensor(made.value,
                        [&](std::uint32_t t) { manifest_.tensors[t].name = made.name; });
      };
      for (const auto& [key, value] : optim_.groups[g].options)
        add(key.is_string() ? key.as_string() : "?", value);
      ValueList items;
      for (const std::string& member : optim_.groups[g].stored_members)
        items.push_back(to_ids_ ? id_value(keys_.at(member)) : Value::string(keys_.at(member)));
      add("params", Value::list(std::move(items)));
    }
  }

  Manifest& manifest_;
  const Roles& roles_;
  std::int32_t root_;
  const std::string& name_;
  OptimDialect dialect_;
  const OptimState& optim_;
  bool to_ids_;
  std::map<std::string, std::string> keys_;  // stored key -> new one
};

/// Members listed as ids, without any state, are ids too.
bool keyed_by_id(const OptimState& optim) { return optim.dialect == OptimDialect::kById; }

Note inferred_names(const OptimState& optim) {
  return {Finding::kRekey, Severity::kInfo,
          fmt::format("{}: {} ids became names, by what the groups record, else by order and shape",
                      optimizer_text(optim.root), optim.parameters.size()),
          "", ""};
}

}  // namespace

std::vector<Note> rekey_optimizers(Manifest& manifest, OptimKeys keys) {
  std::vector<Note> notes;
  if (keys == OptimKeys::kKeep) return notes;
  const std::size_t count = find_roles(manifest.state).optimizers.size();
  if (count == 0) fail(Code::kUnsupported, "there is no optimizer here to rekey");
  for (std::size_t root = 0; root < count; ++root) {
    const Roles roles = find_roles(manifest.state);
    const OptimState optim = canonical_optim_states(manifest, roles).at(root);
    const bool done = keys == OptimKeys::kId ? keyed_by_id(optim)
                                             : optim.dialect == OptimDialect::kByFqn ||
                                                   optim.dialect == OptimDialect::kFlat;
    if (done) continue;
    Rekeyer(manifest, roles, root, optim, keys).run();
    if (keyed_by_id(optim)) notes.push_back(inferred_names(optim));
  }
  check_unique(manifest.state, Code::kUnsupported);
  return notes;
}

std::vector<Note> group_optimizers(Manifest& manifest) {
  std::vector<Note> notes;
  const std::size_t count = find_roles(manifest.state).optimizers.size();
  for (std::size_t root = 0; root < count; ++root) {
    const Roles roles = find_roles(manifest.state);
    if (roles.optimizers[root].dialect != OptimDialect::kFlat) continue;
    const OptimState optim = canonical_optim_states(manifest, roles).at(root);
    Rekeyer(manifest, roles, root, optim, OptimKeys::kFqn).run();
    notes.push_back({Finding::kRekey, Severity::kInfo,
                     fmt::format("{}: options of {} parameters became {} group{}",
                                 optimizer_text(optim.root), optim.parameters.size(),
                                 optim.groups.size(), optim.groups.size() == 1 ? "" : "s"),
                     "", ""});
  }
  if (!notes.empty()) check_unique(manifest.state, Code::kUnsupported);
  return notes;
}

}  // namespace tessera
