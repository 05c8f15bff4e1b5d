#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <set>

#include "lib/state/model_roots.h"
#include "lib/state/role_names.h"

// How an entry is read: its path where the format stored one (an FQN is one item there, dots and
// all), else its dotted name, cut at leaves that optimizers are known to keep.
namespace tessera {
namespace {

/// Places in one name that may be an optimizer's: more of them make no training code's tree.
constexpr std::size_t kMostPlaces = 8;

constexpr std::array kMasterLeaves = {"fp32", "master_param", "fp32_param", "param",
                                      "fp32_from_fp16"};

/// Megatron-FSDP: each parameter's options under its name, in place of groups.
constexpr std::string_view kParameterOptions = "param_to_group_meta";

/// An entry under an optimizer root, cut in the parts roles are made of.
struct OptimPath {
  std::string root;
  bool is_group = false;
  bool flat = false;           // one path item holds "state.<fqn>.<leaf>"
  bool per_parameter = false;  // groups: `rest` is a parameter, then its option
  Path rest;                   // path items after `state`, `param_groups` or the flat item
  std::string flat_rest;       // flat: the item's text after "state." or "param_groups."
  bool cut = false;            // the items are a name that was cut at its dots
};

Path name_items(std::string_view name) {
  Path items;
  for (std::string_view part : split(name, '.')) items.push_back(key_item(part));
  return items;
}

/// Whether a name is all there is of the entry's path.
bool is_one_name(const StateEntry& entry) {
  return entry.path.empty() ||
         (entry.path.size() == 1 && entry.path[0].kind == PathItem::Kind::kKey &&
          entry.path[0].key.find('.') != SharedText::npos && !starts_with_root(entry.path[0].key));
}

/// The entry's path, or, where the format kept none, its name cut at dots.
Path items_of(const StateEntry& entry) {
  return is_one_name(entry) ? name_items(entry.name) : entry.path;
}

std::string join(const Path& items, std::size_t from, std::size_t to) {
  std::string text;
  for (std::size_t i = from; i < to; ++i) text += (i > from ? "." : "") + items[i].text();
  return text;
}

/// Whether optim_paths() need look at the entry: most of a million cannot be an optimizer's.
bool may_be_optim(const StateEntry& entry) {
  const auto speaks_of_one = [](const SharedText& text) {
    return text.find("state") != SharedText::npos ||
           text.find("param_groups") != SharedText::npos ||
           text.find(kParameterOptions) != SharedText::npos;
  };
  return speaks_of_one(entry.name) ||
         std::ranges::any_of(entry.path, speaks_of_one, &PathItem::key);
}

/// Where `state` or `param_groups` stands in the entry: everywhere it does, from the outside in.
std::vector<OptimPath> optim_paths(const StateEntry& entry) {
  std::vector<OptimPath> found;
  if (!may_be_optim(entry)) return found;
  const Path items = items_of(entry);
  for (std::size_t i = 0; i < items.size() && found.size() < kMostPlaces; ++i) {
    if (items[i].kind != PathItem::Kind::kKey) continue;
    const SharedText& key = items[i].key;
    for (const auto& [word, is_group] :
         {std::pair{"state", false}, std::pair{"param_groups", true}}) {
      const std::string prefix = std::string(word) + ".";
      if (key == word)
        found.push_back({join(items, 0, i),
                         is_group,
                         false,
                         false,
                         Path(items.begin() + i + 1, items.end()),
                         {}});
      else if (key.starts_with(prefix))
        found.push_back({join(items, 0, i), is_group, true, false,
                         Path(items.begin() + i + 1, items.end()), key.substr(prefix.size())});
    }
    if (key == kParameterOptions && i + 2 < items.size())
      found.push_back(
          {join(items, 0, i), true, false, true, Path(items.begin() + i + 1, items.end()), {}});
  }
  for (OptimPath& path : found) path.cut = is_one_name(entry);
  return found;
}

/// "<fqn>.<leaf>" cut at its last dot.
std::pair<std::string, std::string> cut_leaf(const std::string& text) {
  const std::size_t dot = text.rfind('.');
  if (dot == std::string::npos) return {text, ""};
  return {text.substr(0, dot), text.substr(dot + 1)};
}

/// The same of a flattened item, with what lies inside of the leaf.
std::pair<std::string, std::string> flat_parts(const OptimPath& path) {
  auto parts = cut_leaf(path.flat_rest);
  if (!path.rest.empty()) parts.second += "." + join(path.rest, 0, path.rest.size());
  return parts;
}

/// PyTorch joins the keys of dicts inside of state by dots, too: what is no parameter of the groups
/// is one of them and the beginning of a leaf.
void cut_at_parameter(const std::set<std::string>& parameters, EntryRole& role) {
  if (parameters.empty() || parameters.contains(role.fqn)) return;
  std::string fqn = role.fqn;
  for (std::size_t dot = fqn.rfind('.'); dot != std::string::npos; dot = fqn.rfind('.')) {
    fqn.resize(dot);
    if (!parameters.contains(fqn)) continue;
    role.leaf = std::string(role.fqn.view().substr(dot + 1)) + "." + role.leaf;
    role.fqn = fqn;
    return;
  }
}

/// FQN and leaf of a state entry: one path item is the FQN (or id), the rest the leaf; a path made
/// from a name is cut at the leaf.
std::pair<std::string, std::string> state_parts(const StateEntry& entry, const OptimPath& path) {
  if (path.flat) return flat_parts(path);
  if (entry.path.size() > 1 && !path.rest.empty())
    return {path.rest[0].text(), join(path.rest, 1, path.rest.size())};
  return cut_leaf(join(path.rest, 0, path.rest.size()));
}

/// The parameter and the option of an entry below `param_to_group_meta`.
std::pair<std::string, std::string> option_parts(const StateEntry& entry, const OptimPath& path) {
  if (entry.path.size() > 1) return {path.rest[0].text(), join(path.rest, 1, path.rest.size())};
  return cut_leaf(join(path.rest, 0, path.rest.size()));
}

/// Megatron-FSDP names parameters from its outermost wrapper on, and weights from an inner one.
void strip_wrappers(std::string& fqn) {
  constexpr std::string_view kWrapper = "module.";
  while (fqn.starts_with(kWrapper) && fqn.size() > kWrapper.size()) fqn.erase(0, kWrapper.size());
}

bool looks_like_state(const StateEntry& entry, const OptimPath& path) {
  if (path.is_group) return true;
  const auto [fqn, leaf] = state_parts(entry, path);
  return !fqn.empty() &&
         (is_known_optimizer_leaf(leaf) ||
          (!path.flat && path.rest.size() > 1 && is_known_optimizer_leaf(path.rest[0].text())));
}

class Finder {
 public:
  explicit Finder(const StateDict& state) : state_(state) {
    roles_.entries.resize(state.entries.size());
  }

  Roles find() {
    find_optimizers();
    find_flat_parameters();
    for (const Found& found : found_) assign_optimizer_entry(found);
    find_models(state_, roles_);
    return std::move(roles_);
  }

 private:
  /// An entry under what may be an optimizer.
  struct Found {
    std::size_t entry = 0;
    OptimPath path;
  };
  const StateEntry& entry_of(const Found& found) const { return state_.entries[found.entry]; }

  void find_optimizers() {
    for (const StateEntry& entry : state_.entries)
      for (const OptimPath& path : optim_paths(entry)) look_at(entry, path);
    std::vector<std::string> order;
    std::map<std::string, std::vector<std::size_t>> by_root;  // indices in found_
    for (std::size_t i = 0; i < state_.entries.size(); ++i) {
      std::vector<OptimPath> paths = optim_paths(state_.entries[i]);
      if (paths.empty()) continue;
      OptimPath& path = choose(paths);
      auto& members = by_root[path.root];
      if (members.empty()) order.push_back(path.root);
      members.push_back(found_.size());
      found_.push_back({i, std::move(path)});
    }
    join_wrapped_groups(by_root);
    for (const auto& [root, members] : by_root) flatten_cut(members);
    for (const std::string& root : order) {
      if (!accepted_.contains(root) || by_root[root].empty()) continue;
      root_index_[root] = static_cast<std::int32_t>(roles_.optimizers.size());
      roles_.optimizers.push_back(describe(root, by_root[root]));
    }
  }

  /// What one entry says of a root that it may belong to.
  void look_at(const StateEntry& entry, const OptimPath& path) {
    if (path.is_group) grouped_.insert(path.root);
    if (path.per_parameter) wrapped_.insert(path.root);
    const bool looks = looks_like_state(entry, path);
    if (looks) accepted_.insert(path.root);
    if (!looks && entry.value.is_tensor()) mixed_.insert(path.root);
  }

  /// Training code may keep all it saves below a key "state": the optimizer is the outermost place
  /// that has groups, or nothing but what optimizers keep.
  OptimPath& choose(std::vector<OptimPath>& paths) const {
    const auto is_sure = [this](const OptimPath& path) {
      return grouped_.contains(path.root) ||
             (accepted_.contains(path.root) && !mixed_.contains(path.root));
    };
    const auto sure = std::ranges::find_if(paths, is_sure);
    return sure == paths.end() ? paths.front() : *sure;
  }

  /// State under "optimizer" and groups under "optimizer.optimizer" (a wrapper's dict around that
  /// of the optimizer it wraps, as Megatron stores them) are one optimizer.
  void join_wrapped_groups(std::map<std::string, std::vector<std::size_t>>& by_root) {
    constexpr std::string_view kInner = ".optimizer";
    for (auto& [root, members] : by_root) {
      if (!root.ends_with(kInner)) continue;
      const auto outer = by_root.find(root.substr(0, root.size() - kInner.size()));
      const auto is_group = [&](std::size_t i) { return found_[i].path.is_group; };
      if (outer == by_root.end() || !std::ranges::all_of(members, is_group) ||
          std::ranges::any_of(outer->second, is_group))
        continue;
      for (const std::size_t i : members) found_[i].path.root = outer->first;
      outer->second.insert(outer->second.end(), members.begin(), members.end());
      members.clear();
    }
  }

  /// Names that were cut are those of the flattened form, where a group's is a parameter that has
  /// state, then an option.
  void flatten_cut(const std::vector<std::size_t>& members) {
    const auto fqn = [](const OptimPath& path) {
      return cut_leaf(join(path.rest, 0, path.rest.size())).first;
    };
    std::set<std::string> with_state;
    for (const std::size_t i : members)
      if (const OptimPath& path = found_[i].path; path.cut && !path.is_group)
        with_state.insert(fqn(path));
    const auto is_flat = [&](std::size_t i) {
      const OptimPath& path = found_[i].path;
      return path.cut && path.is_group && !path.per_parameter && !is_decimal(fqn(path)) &&
             with_state.contains(fqn(path));
    };
    if (std::ranges::none_of(members, is_flat)) return;
    for (const std::size_t i : members) {
      OptimPath& path = found_[i].path;
      if (!path.cut || path.per_parameter || (path.is_group && is_decimal(fqn(path)))) continue;
      path.flat = true;
      path.flat_rest = join(path.rest, 0, path.rest.size());
      path.rest.clear();
    }
  }

  OptimizerRoot describe(const std::string& name, const std::vector<std::size_t>& members) const {
    OptimizerRoot root{.name = name};
    bool all_ids = true, any_id = false, any_state = false, leaf_first = true, flat = false;
    bool per_parameter = false;
    for (std::size_t i : members) {
      const OptimPath& path = found_[i].path;
      flat |= path.flat;
      if (path.is_group) {
        root.has_groups = true;
        per_parameter |= path.per_parameter;
        root.groups_as_one_value |= !path.flat && path.rest.empty();
        continue;
      }
      const auto [fqn, leaf] = state_parts(entry_of(found_[i]), path);
      any_state = true;
      all_ids = all_ids && is_decimal(fqn);
      any_id = any_id || is_decimal(fqn);
      leaf_first = leaf_first && !path.flat && path.rest.size() > 1 &&
                   is_known_optimizer_leaf(path.rest[0].text()) && !is_known_optimizer_leaf(leaf);
    }
    if (flat || per_parameter) {
      root.dialect = OptimDialect::kFlat;
    } else if (all_ids ? any_state : any_id && lists_ids(members)) {
      root.dialect = OptimDialect::kById;
    } else if (any_state && leaf_first) {
      root.dialect = OptimDialect::kLeafFirst;
    } else if (!any_state && lists_ids(members)) {
      root.dialect = OptimDialect::kById;
    }
    return root;
  }

  /// Where state does not show it (there is none, or counters of the optimizer's own stand among
  /// it): do the groups list integers?
  bool lists_ids(const std::vector<std::size_t>& members) const {
    for (std::size_t i : members) {
      const Value& value = entry_of(found_[i]).value;
      if (!entry_of(found_[i]).name.ends_with(".params") || value.kind() != Value::Kind::kList)
        continue;
      if (!value.as_list().empty()) return value.as_list().front().is_int();
    }
    return false;
  }

  /// Those whose options are flattened.
  void find_flat_parameters() {
    for (const Found& found : found_)
      if (found.path.flat && found.path.is_group)
        flat_parameters_[found.path.root].insert(flat_parts(found.path).first);
  }

  void assign_optimizer_entry(const Found& found) {
    const OptimPath& path = found.path;
    const auto root = root_index_.find(path.root);
    if (root == root_index_.end()) return;
    EntryRole& role = roles_.entries[found.entry];
    role.root = root->second;
    const OptimDialect dialect = roles_.optimizers[static_cast<std::size_t>(role.root)].dialect;
    if (!path.is_group) {
      role.role = Role::kOptimState;
      std::tie(role.fqn, role.leaf) = state_parts(entry_of(found), path);
      if (path.flat) cut_at_parameter(flat_parameters_[path.root], role);
      if (is_of_optimizer(entry_of(found), path, dialect, role)) {
        role.role = Role::kOptimGroup;
        role.fqn = role.leaf = {};
        return;
      }
      if (dialect == OptimDialect::kLeafFirst) {
        role.leaf = path.rest[0].text();
        role.fqn = join(path.rest, 1, path.rest.size());
      }
      if (wrapped_.contains(path.root)) {
        std::string fqn = role.fqn;
        strip_wrappers(fqn);
        role.fqn = std::move(fqn);
      }
      return;
    }
    role.role = Role::kOptimGroup;
    if (path.per_parameter) {
      auto [fqn, option] = option_parts(entry_of(found), path);
      strip_wrappers(fqn);
      role.fqn = std::move(fqn);
      role.leaf = std::move(option);
    } else if (path.flat) {
      std::tie(role.fqn, role.leaf) = flat_parts(path);
    } else if (const auto group = group_number(path.rest)) {
      role.group = *group;
      role.leaf = join(path.rest, 1, path.rest.size());
    } else if (path.rest.size() == 1) {
      assign_attribute(path.rest[0].text(), role);
    }
  }

  /// State of the optimizer's own, of no parameter: a counter beside them (MADGRAD's state["k"]), or
  /// what has no id where they have.
  static bool is_of_optimizer(const StateEntry& entry, const OptimPath& path, OptimDialect dialect,
                              const EntryRole& role) {
    const std::string_view key = role.fqn.empty() ? role.leaf : role.fqn;
    if (is_decimal(key)) return false;
    const bool plain = entry.value.is_tensor() || entry.value.is_number();
    return dialect == OptimDialect::kById ||
           (!path.flat && entry.path.size() > 1 && path.rest.size() == 1 && plain);
  }

  /// More digits than a number of groups can have are a name.
  static std::optional<std::int64_t> group_number(const Path& rest) {
    return rest.empty() ? std::nullopt : decimal_number(rest[0].text());
  }

  /// "0@lr": the option lr as an attribute of HDF5's group 0.
  static void assign_attribute(const std::string& text, EntryRole& role) {
    const std::size_t at = text.find('@');
    const auto group = decimal_number(std::string_view(text).substr(0, at));
    if (at == std::string::npos || !group) return;
    role.group = *group;
    role.leaf = text.substr(at + 1);
  }

  const StateDict& state_;
  std::vector<Found> found_;
  std::set<std::string> grouped_, accepted_, mixed_;  // roots, by what stands below them
  std::set<std::string> wrapped_;                     // roots of Megatron-FSDP
  std::map<std::string, std::set<std::string>> flat_parameters_;  // by root
  std::map<std::string, std::int32_t> root_index_;
  Roles roles_;
};

}  // namespace

std::string_view dialect_name(OptimDialect dialect) {
  switch (dialect) {
    case OptimDialect::kByFqn:
      return "state keyed by FQN";
    case OptimDialect::kById:
      return "state keyed by integer id";
    case OptimDialect::kFlat:
      return "flattened state.<fqn>.<leaf> keys";
    case OptimDialect::kLeafFirst:
      return "state keyed by leaf, then FQN";
  }
  return "unknown";
}

bool starts_with_root(std::string_view key) {
  return key.starts_with("state.") || key.starts_with("param_groups.");
}

bool is_master_leaf(std::string_view leaf) {
  return std::ranges::find(kMasterLeaves, leaf) != kMasterLeaves.end();
}

std::optional<std::int64_t> decimal_number(std::string_view text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (!is_decimal(text) || error != std::errc()) return std::nullopt;
  return number;
}

bool keyed_otherwise(OptimDialect dialect) {
  return dialect == OptimDialect::kById || dialect == OptimDialect::kLeafFirst;
}

Roles find_roles(const StateDict& state) { return Finder(state).find(); }

}  // namespace tessera
