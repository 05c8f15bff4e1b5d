#pragma once
// OptimizerDict: one optimizer as entries of a LiveState, keyed by FQN; and back.
//
//   save   state that exists            -> <root>.state.<fqn>.<leaf>, `step` as 0-dim float32
//          groups, by the class's table -> <root>.param_groups.<i>.<key>, `params` by FQN
//   load   expect   what is stored decides: state that it has is asked for (and made, aside, where
//                   the optimizer has none yet); state that it lacks will be dropped
//          commit   once all of a parameter's leaves are filled: the state becomes the optimizer's
//
// Groups are matched by their members, not by their index. Nothing of the optimizer changes before
// commit but the values of state tensors it already has.
#include <tessera/state/live_state.h>
#include <tessera/state/optim_state.h>

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "fsdp_core/bridge/live_memory.h"
#include "fsdp_core/state_dict/model_tensors.h"
#include "fsdp_core/state_dict/optimizer_table.h"

namespace tessera::fsdp {

enum class StateForm : std::uint8_t { kShards, kWhole, kWholeOnFirstRank };

class OptimizerDict {
 public:
  /// Throws, naming group and FQN: a parameter that is not the model's, or is in two groups; a
  /// class without a table. `form`: how state of a sharded parameter's shape is given.
  OptimizerDict(torch::optim::Optimizer& optimizer, const ModelTensors& model, std::string root,
                StateForm form);

  /// Adds what exists.
  void declare(LiveState& state);
  /// Before a save: steps and staged tensors as they are now. Throws kInvalidArgument where ranks
  /// count different steps, naming the FQN and both values. Collective over the units' ranks.
  void refresh();

  /// Before a load: replaces what declare added by what `stored` has.
  void expect(LiveState& state, const Manifest& stored);
  /// A value of the checkpoint below this root will be loaded: the optimizer is part of the load,
  /// which a policy may have left out. Throws what expect found: kCorrupt for half a state,
  /// kInvalidArgument for options that the optimizer cannot have.
  void check(const StateEntry& stored);
  void commit(const std::unordered_set<std::string>& loaded);

 private:
  using State = torch::optim::OptimizerParamState;

  /// A parameter of the optimizer.
  struct Member {
    std::string fqn;
    std::vector<std::string> names;  // `fqn` and those it is tied to
    std::size_t group = 0;
    at::Tensor parameter;
    const ModelTensor* model = nullptr;
  };
  /// A step count on its way: its tensor, and where it lies.
  struct Counter {
    std::string name;
    at::Tensor buffer;
  };
  /// What a load does to one parameter's state.
  struct Pending {
    const Member* member = nullptr;
    bool drop = false;
    std::unique_ptr<State> fresh;     // null: the optimizer has one
    std::vector<std::string> leaves;  // names of its tensors
    std::vector<const StateLeaf*> absent;
    std::optional<Counter> counter;
    std::optional<double> step;  // stored as a value
  };

  /// Keeps the first error of `f` for check().
  template <class F>
  void defer(F&& f);
  State* state_of(const Member& member) const;
  Path state_path(const std::string& fqn, const std::string& leaf) const;
  void add(LiveState& state, Path path, LiveTensor tensor) const;
  void add_value(LiveState& state, Path path, Value value) const;
  std::string add_leaf(LiveState& state, const Member& member, const std::string& fqn,
                       const StateLeaf& leaf, const at::Tensor& tensor, bool fill);
  void declare_state(LiveState& state, const Member& member);
  void declare_group(LiveState& state, std::size_t index) const;
  void agree_on_steps();

  void expect_member(LiveState& state, const Member& member, const Manifest& stored,
                     const OptimState& optim);
  void expect_leaves(LiveState& state, Pending& pending, const Manifest& stored,
                     const OptimParameter& parameter);
  void expect_step(LiveState& state, Pending& pending, const Manifest& stored,
                   const OptimParameter& parameter);
  void expect_groups(LiveState& state, const Manifest& stored, const OptimState& optim);
  std::unique_ptr<torch::optim::OptimizerOptions> options_from(std::size_t group,
                                                               const OptimGroup& stored) const;

  torch::optim::Optimizer& optimizer_;
  const OptimizerTable& table_;
  const ModelTensors& model_;
  std::string root_;
  StateForm form_;
  std::vector<Member> members_;
  LiveMemory memory_;
  std::vector<std::pair<const Member*, Counter>> counters_;
  std::vector<Pending> pending_;
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> new_options_;  // by group
  std::exception_ptr deferred_;
  bool seen_ = false;
};

}  // namespace tessera::fsdp
