#pragma once
// Optimizers that are known by what they keep: a row says which leaves a parameter has, how each is
// cut when the parameter is cut, and which options of the groups distinguish it from others with the
// same leaves. A row fits where all of its leaves are there and no others; the first that fits is the
// name. What fits no row is "unknown", never called by another one's name.
#include <tessera/state/optim_state.h>

#include <set>
#include <span>
#include <string>
#include <string_view>

namespace tessera {

struct KnownOptimizer {
  std::string_view name;
  /// Words NAME[:CUT][?]. CUT: one, row, factored, blocks, opaque, as LeafCut; without it the leaf
  /// has an element for each of the parameter's. "?": it may be missing. "NAME*": a beginning.
  std::string_view leaves;
  /// Words that the options must have; "a|b": one of them; "!a": not. "three_betas": so many.
  std::string_view options;
};

std::span<const KnownOptimizer> known_optimizers();

/// `leaves` and `options` are those of all parameters and groups together. nullptr: none fits.
const KnownOptimizer* recognize_optimizer(const std::set<std::string, std::less<>>& leaves,
                                          const std::set<std::string, std::less<>>& options);

/// How the row's leaf is cut; kElementwise for what the row does not list.
LeafCut cut_of_leaf(const KnownOptimizer& optimizer, std::string_view leaf);

/// Whether a parameter has to have the leaf: the row lists it without "?".
bool is_needed_leaf(const KnownOptimizer& optimizer, std::string_view leaf);

}  // namespace tessera
