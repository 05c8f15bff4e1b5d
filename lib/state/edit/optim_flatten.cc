#include "lib/state/edit/optim_flatten.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/state/manifest_edit.h>
#include <tessera/state/optim_state.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lib/state/edit/fqn_place.h"
#include "lib/state/edit/move_entry.h"
#include "lib/state/edit/optim_place.h"
#include "lib/state/edit/tensor_remapper.h"
#include "lib/state/role_names.h"

namespace tessera {
namespace {

constexpr char kWayOut[] =
    "leave out --optim-keys, or use --optim-keys fqn, which has a place for it";

class Flattener {
 public:
  Flattener(Manifest& manifest, std::size_t root)
      : manifest_(manifest),
        roles_(find_roles(manifest.state)),
        root_(static_cast<std::int32_t>(root)),
        of_(roles_.optimizers[root]),
        optim_(canonical_optim_states(manifest, roles_).at(root)) {}

  Note run() {
    std::vector<std::size_t> places;
    bool groups_done = false;
    for (std::size_t i = 0; i < roles_.entries.size(); ++i) {
      places.push_back(made_.size());
      StateEntry& entry = manifest_.state.entries[i];
      const EntryRole& role = roles_.entries[i];
      if (role.root == root_ && role.role == Role::kOptimGroup) {
        if (!std::exchange(groups_done, true)) add_groups();
        continue;
      }
      if (role.root == root_ && role.role == Role::kOptimState) move_state(entry, role);
      made_.push_back(std::move(entry));
    }
    places.push_back(made_.size());
    move_containers(places);
    manifest_.state.entries = std::move(made_);
    return note();
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    fail(Code::kUnsupported,
         fmt::format("{}: {}, for which the flattened form has no place", optimizer_text(of_.name),
                     what),
         kWayOut);
  }

  /// What stands below `state` and is no parameter's (MADGRAD's counter).
  void refuse_stray(const StateEntry& entry, const EntryRole& role) const {
    const bool of_group = role.group >= 0 || lists_members(role, entry);
    if (!of_group) refuse(fmt::format("\"{}\" is of no parameter", printable(entry.name)));
  }

  static Path joined(const Path& root, const std::string& item, const Path& rest,
                     std::size_t from) {
    Path path = below(root, SharedText(item));
    path.insert(path.end(), rest.begin() + static_cast<std::ptrdiff_t>(from), rest.end());
    return path;
  }

  /// One item of the keys down to the leaf, or to a list, whose items stay below.
  Path flat_path(const Path& root, std::string text, const std::string& fqn, const Path& rest) {
    text += "." + fqn;
    std::size_t i = 0;
    for (; i < rest.size() && rest[i].kind != PathItem::Kind::kIndex; ++i) {
      const std::string key = rest[i].text();
      if (key.find('.') != key.npos)
        refuse(
            fmt::format("\"{}\" of \"{}\" has a dot in its name", printable(key), printable(fqn)));
      integers_ = integers_ || rest[i].kind == PathItem::Kind::kIntKey;
      text += "." + key;
    }
    return joined(root, text, rest, i);
  }

  /// An option is one item whatever it holds.
  Path option_path(const Path& root, const std::string& fqn, const Path& rest) const {
    const PathItem& option = rest[0];
    if (option.kind != PathItem::Kind::kKey || option.key.find('.') != SharedText::npos)
      refuse(fmt::format("option \"{}\" is {}", printable(option.text()),
                         option.kind == PathItem::Kind::kKey ? "a name with a dot" : "no name"));
    return joined(root, fmt::format("param_groups.{}.{}", fqn, option.text()), rest, 1);
  }

  void move_state(StateEntry& entry, const EntryRole& role) {
    const OptimPlace place = optim_place(entry, role, of_);
    if (place.rest.empty())
      refuse(fmt::format("state of \"{}\" is one value", printable(role.fqn.view())));
    move_entry(manifest_, entry, flat_path(place.root, "state", role.fqn, place.rest));
  }

  /// An option of a group, before it is repeated.
  struct Option {
    Path root;
    Path rest;
    Value value;
    std::optional<std::int64_t> rank;
  };

  std::map<std::int64_t, std::vector<Option>> options_of_groups() const {
    std::map<std::int64_t, std::vector<Option>> options;
    for (std::size_t i = 0; i < roles_.entries.size(); ++i) {
      const StateEntry& entry = manifest_.state.entries[i];
      const EntryRole& role = roles_.entries[i];
      if (role.root != root_ || role.role != Role::kOptimGroup) continue;
      refuse_stray(entry, role);
      OptimPlace place = optim_place(entry, role, of_);
      if (role.group >= 0) {
        if (role.leaf != "params")
          options[role.group].push_back(
              {std::move(place.root), std::move(place.rest), entry.value, entry.rank});
        continue;
      }
      std::int64_t index = 0;
      for (const Value& group : entry.value.as_list())
        add_options_of(group, place.root, options[index++]);
    }
    return options;
  }

  /// All groups as one value.
  void add_options_of(const Value& group, const Path& root, std::vector<Option>& options) const {
    if (!group.is_dict()) refuse("a group is no dict");
    for (const auto& [key, value] : group.as_dict()) {
      if (!key.is_string()) refuse("an option has no name");
      if (key.as_string() != "params")
        options.push_back({root, {key_item(key.as_string())}, value, std::nullopt});
    }
  }

  void add_groups() {
    const auto options = options_of_groups();
    for (const OptimGroup& group : optim_.groups) {
      const auto found = options.find(group.index);
      if (found == options.end()) continue;
      if (group.members.empty())
        refuse(fmt::format("group {} has options and no members", group.index));
      for (const std::string& fqn : group.members)
        for (const Option& option : found->second) add_option(fqn, option);
    }
  }

  void add_option(const std::string& fqn, const Option& option) {
    StateEntry entry;
    entry.value = option.value;
    entry.rank = option.rank;
    if (entry.value.holds_tensors())
      entry.value = TensorRemapper(
          [&](std::uint32_t t) { return own(t, entry.value.is_tensor()); })(option.value);
    move_entry(manifest_, entry, option_path(option.root, fqn, option.rest));
    made_.push_back(std::move(entry));
  }

  /// The tensor itself the first time, then another with its bytes.
  std::uint32_t own(std::uint32_t tensor, bool is_leaf) {
    const bool first = used_.insert(tensor).second;
    const bool embedded = manifest_.tensors[tensor].embedded;
    if (!first) {
      const TensorPiece whole = whole_piece(manifest_, tensor);
      const Shape shape = manifest_.tensors[tensor].spec.shape;
      tensor = build_tensor(manifest_, "", shape, {&whole, 1});
    }
    manifest_.tensors[tensor].embedded = embedded && !is_leaf;
    return tensor;
  }

  /// Containers of the old form go: the flattened one is a dict of leaves. What lies inside of an
  /// option, or of a list in the state, follows it.
  void move_containers(const std::vector<std::size_t>& places) {
    std::vector<ContainerNote> kept;
    for (ContainerNote& note : manifest_.state.containers) {
      if (note.entries_before < places.size()) note.entries_before = places[note.entries_before];
      const auto at = optim_word(note.path, of_.name);
      if (!at) {
        kept.push_back(std::move(note));
      } else if (!move_container(note, *at, kept) && !note.attributes.is_none()) {
        manifest_.left_out.push_back({LeftOut::Kind::kAttribute, dotted(note.path),
                                      "the flattened form has no such dict", 0, 0});
      }
    }
    manifest_.state.containers = std::move(kept);
  }

  bool move_container(const ContainerNote& note, std::size_t at, std::vector<ContainerNote>& kept) {
    const auto part = [&](std::size_t from, std::size_t to) {
      return Path(note.path.begin() + static_cast<std::ptrdiff_t>(from),
                  note.path.begin() + static_cast<std::ptrdiff_t>(to));
    };
    if (note.path.size() < at + 3) return false;
    const Path root = part(0, at), rest = part(at + 2, note.path.size());
    const PathItem& key = note.path[at + 1];
    const auto is_index = [](const PathItem& item) { return item.kind == PathItem::Kind::kIndex; };
    const auto keep = [&](Path path) {
      kept.push_back({std::move(path), note.kind, note.attributes, note.entries_before});
    };
    if (is_key(note.path[at], "state")) {
      if (std::none_of(rest.begin(), rest.end(), is_index)) return false;
      keep(flat_path(root, "state", key.text(), rest));
      return true;
    }
    for (const OptimGroup& group : optim_.groups)
      if (is_index(key) && group.index == key.index)
        for (const std::string& fqn : group.members) keep(option_path(root, fqn, rest));
    return true;
  }

  Note note() const {
    std::string alike;
    for (std::size_t a = 0; a < optim_.groups.size() && alike.empty(); ++a)
      for (std::size_t b = a + 1; b < optim_.groups.size() && alike.empty(); ++b)
        if (optim_.groups[a].options == optim_.groups[b].options)
          alike = fmt::format(
              "; groups {} and {} have the same options, and are one where they are "
              "made groups again",
              optim_.groups[a].index, optim_.groups[b].index);
    if (integers_) alike += "; integer keys inside of state became text, as PyTorch makes them";
    return {Finding::kRekey, Severity::kInfo,
            fmt::format("{}: options of {} group{} stand under the names of {} parameters{}",
                        optimizer_text(of_.name), optim_.groups.size(),
                        optim_.groups.size() == 1 ? "" : "s", optim_.parameters.size(), alike),
            "", ""};
  }

  Manifest& manifest_;
  const Roles roles_;
  std::int32_t root_;
  const OptimizerRoot& of_;
  const OptimState optim_;
  std::vector<StateEntry> made_;
  std::set<std::uint32_t> used_;  // tensors of options that have an entry
  bool integers_ = false;         // among the keys inside of state
};

}  // namespace

bool is_flattened(const Manifest& manifest, std::size_t root) {
  const Roles roles = find_roles(manifest.state);
  const OptimizerRoot& of = roles.optimizers[root];
  if (of.dialect != OptimDialect::kFlat) return false;
  for (std::size_t i = 0; i < roles.entries.size(); ++i) {
    const EntryRole& role = roles.entries[i];
    if (role.root == static_cast<std::int32_t>(root) &&
        !is_flattened(manifest.state.entries[i], role, of))
      return false;
  }
  return true;
}

Note flatten_optimizer(Manifest& manifest, std::size_t root) {
  return Flattener(manifest, root).run();
}

}  // namespace tessera
