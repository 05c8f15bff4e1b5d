#pragma once
// Where an entry of an optimizer stands, cut at the parameter or the group that it belongs to, in
// every dialect:
//
//   optim  state.<fqn or id>  exp_avg          optim  "state.<fqn>.exp_avg"
//   optim  param_groups.0     lr               optim  "param_groups.<fqn>.lr"
//   root   ................   rest             root    ..........  rest: the leaf
#include <tessera/state/roles.h>

#include <optional>
#include <string>
#include <string_view>

namespace tessera {

struct OptimPlace {
  Path root;  // of the optimizer
  Path rest;  // below the parameter or the group; empty where all of it is one value
};

/// `root`: the optimizer's dotted name. Where names alone are known, cut by no path, the root and
/// the leaf are one item each.
OptimPlace optim_place(const StateEntry& entry, const EntryRole& role, const OptimizerRoot& root);

/// Index of the item of `path` that is, or begins with, `state` or what groups are called, in the
/// optimizer at `root`; nullopt: it leads elsewhere, or is one name, cut by nothing.
std::optional<std::size_t> optim_word(const Path& path, const std::string& root);
/// The leaf of the flattened item "state.<fqn>.<leaf>": several keys where it is inside of dicts.
Path flat_leaf(std::string_view item, std::string_view fqn);

/// The entry lies where PyTorch's flattened form has it: one item holds the parameter and the leaf.
bool is_flattened(const StateEntry& entry, const EntryRole& role, const OptimizerRoot& root);

}  // namespace tessera
