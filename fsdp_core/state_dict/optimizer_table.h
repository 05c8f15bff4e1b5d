#pragma once
// What state dicts know of each optimizer class: one table per class, with the group keys and state
// leaves that PyTorch 2.13's class of the same name writes, in its order.
//
//   group key     bound to a field of the C++ options   lr, betas, ...
//                 kept as it is                          foreach, fused, capturable, differentiable
//                 fixed: the C++ class cannot do else    maximize, decoupled_weight_decay
//   state leaf    a tensor of the parameter's shape, or `step`
//
// Tables are pure data and functions; they hold no optimizer.
#include <tessera/state/value.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::fsdp {

struct GroupKey {
  using Options = torch::optim::OptimizerOptions;
  std::string name;
  std::function<Value(Options&)> get;               // bound ones
  std::function<void(Options&, const Value&)> set;  // throws kInvalidArgument: not such a value
  Value initial;                                    // kept and fixed ones: Python's default
  std::string fixed_because;                        // fixed ones: why another value is refused
  bool bound() const { return static_cast<bool>(get); }
  bool fixed() const { return !fixed_because.empty(); }
};

struct StateLeaf {
  using State = torch::optim::OptimizerParamState;
  std::string name;
  std::function<at::Tensor&(State&)> tensor;
  bool required = true;     // of a parameter that has state at all
  std::string needed_with;  // else: by a step where this group option is set
};

struct OptimizerTable {
  using Optimizer = torch::optim::Optimizer;
  using State = torch::optim::OptimizerParamState;

  std::string name;           // as messages show it: "torch::optim::AdamW"
  std::string python_name;    // "AdamW"
  std::string own_group_key;  // of its groups: every version writes it, no class of another kind
  std::vector<GroupKey> group_keys;
  std::vector<StateLeaf> leaves;
  /// The class makes all state when it is made, and cannot step a parameter without.
  bool has_state_from_start = false;
  /// Empty: the optimizer counts no steps. Exact up to 2^24.
  std::function<double(State&)> step;
  /// Where the count is a tensor, on the parameter's device: empty elsewhere.
  std::function<const at::Tensor&(State&)> step_tensor;
  std::function<void(State&, double)> set_step;
  std::function<std::unique_ptr<State>()> make_state;
  /// A copy of the options that carries these keys too (group_options.h).
  std::function<std::unique_ptr<GroupKey::Options>(const GroupKey::Options&, ValueDict)> with_kept;

  const GroupKey* find_key(std::string_view key) const;
  const StateLeaf* find_leaf(std::string_view leaf) const;
};

/// The table whose own_group_key is `key`; null: none. (Adam and AdamW have the same one: Adam's.)
const OptimizerTable* table_by_group_key(std::string_view key);

/// Throws kUnsupported, naming the class: L-BFGS, and what has no table.
const OptimizerTable& table_of(const torch::optim::Optimizer& optimizer);

}  // namespace tessera::fsdp
