#pragma once
// OptimizerDict: optimizers as entries of a LiveState, keyed by FQN; and back. One or several are
// the same thing: a list of groups (optimizer_members.h).
//
//   save   state that exists            -> <root>.state.<fqn>.<leaf>, `step` as 0-dim float32
//          groups, by the class's table -> <root>.param_groups.<i>.<key>, `params` by FQN
//   load   expect   what is stored decides: state that it has is asked for (and made, aside, where
//                   its optimizer has none yet); state that it lacks will be dropped
//          commit   once all of a parameter's leaves are filled: the state becomes its optimizer's
//
// Nothing of an optimizer changes before commit but the values of state tensors it already has.
#include <tessera/state/live_state.h>
#include <tessera/state/optim_state.h>

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "fsdp_core/bridge/live_memory.h"
#include "fsdp_core/state_dict/optimizer_groups.h"
#include "fsdp_core/state_dict/optimizer_members.h"
#include "fsdp_core/state_dict/optimizer_table.h"

namespace tessera::fsdp {

/// How state of a sharded parameter's shape is given.
enum class StateForm : std::uint8_t { kShards, kRows, kWhole, kWholeOnFirstRank, kFlat };

class OptimizerDict {
 public:
  /// `replicated`: names of leaves that have a shape of their own, equal on every rank. Throws as
  /// members_of and entries_of; kUnsupported: a class without a table.
  OptimizerDict(const OptimizerRef& optimizers, const ModelTensors& model, std::string root,
                StateForm form, std::vector<std::string> replicated);

  /// Adds what exists.
  void declare(LiveState& state);
  /// Before a save: steps and staged tensors as they are now. Throws kInvalidArgument, naming the
  /// parameter, where its optimizer now keeps other tensors than declare found; after expect.
  void refresh(StagedCopies& staged);
  /// The steps of each parameter, or that it has no state.
  std::vector<Agreement> agreed() const;
  /// One line per parameter: what must be equal on all ranks before declare() gathers anything.
  /// Throws what declare() may throw.
  std::string lines() const;
  std::shared_ptr<const ChangeWatch> watch() const { return memory_.watch(); }

  /// Before a load: replaces what declare added by what `stored` has.
  void expect(LiveState& state, const Manifest& stored);
  /// A value of the checkpoint below this root will be loaded: the optimizer is part of the load,
  /// which a policy may have left out. Throws what expect found: kCorrupt for half a state,
  /// kInvalidArgument for options that the optimizer cannot have.
  void check(const StateEntry& stored);
  /// Everything is read, nothing of the optimizer filled yet. Throws for steps that are no counts,
  /// and as check().
  void check_loaded(const std::unordered_set<std::string>& loaded);
  /// Before check_loaded, on all ranks: as LiveMemory's.
  void scatter(const std::unordered_set<std::string>& loaded) { memory_.scatter(loaded); }
  void commit(const std::unordered_set<std::string>& loaded);

 private:
  using State = torch::optim::OptimizerParamState;

  /// A step count on its way: its tensor, and where it lies.
  struct Counter {
    std::string name;
    at::Tensor buffer;
  };
  /// What a load does to one entry's state.
  struct Pending {
    const OptimizerEntry* entry = nullptr;
    bool drop = false;
    std::vector<std::unique_ptr<State>> fresh;  // by part; null: its optimizer has one
    std::vector<std::string> leaves;            // names of its tensors
    std::vector<const StateLeaf*> absent;
    std::optional<Counter> counter;
    std::optional<double> step;  // stored as a value
  };

  /// Keeps the first error of `f`, as one of `where`, for check().
  void defer(const std::string& where, const std::function<void()>& f);
  bool is_replicated(const StateLeaf& leaf) const;
  Path state_path(const std::string& fqn, const std::string& leaf) const;
  std::string state_name(const std::string& fqn) const {
    return dotted({key_item(root_), key_item("state"), key_item(fqn)});
  }
  /// Entry `fqn` of `leaf`, of which `tensors` are the parts. `scratch`: not yet an optimizer's.
  /// Returns its name.
  std::string add_leaf(LiveState& state, const OptimizerEntry& entry, const std::string& fqn,
                       const StateLeaf& leaf, const std::vector<at::Tensor>& tensors, bool fill,
                       bool scratch = false);
  std::optional<LiveTensor> leaf_tensor(const OptimizerEntry& entry, const std::string& name,
                                        const std::vector<at::Tensor>& tensors, bool fill);
  static void check_shapes(const OptimizerEntry& entry, const std::string& name,
                           const StateLeaf& leaf, const std::vector<at::Tensor>& tensors);
  /// All that its optimizer keeps now.
  static std::vector<at::Tensor> kept_tensors(const OptimizerEntry& entry);
  static void check_still_borrowed(const OptimizerEntry& entry,
                                   const std::vector<at::Tensor>& borrowed);
  /// By part; none: the optimizer does not keep it.
  static std::vector<at::Tensor> tensors_of(const OptimizerEntry& entry, const StateLeaf& leaf);
  /// `fill`: as of LiveMemory::spread.
  void declare_state(LiveState& state, const OptimizerEntry& entry, bool fill);
  /// From what read_steps() found.
  double step_of(const OptimizerMember& member) const {
    return steps_[static_cast<std::size_t>(&member - members_.data())];
  }
  double step_of(const OptimizerEntry& entry, const std::string& name) const;
  void read_steps() const { steps_ = steps_of(members_); }

  void expect_entry(LiveState& state, const OptimizerEntry& entry, const Manifest& stored,
                    const OptimState& optim);
  void expect_missing(LiveState& state, const OptimizerEntry& entry);
  void expect_leaves(LiveState& state, Pending& pending, const Manifest& stored,
                     const OptimState& optim, const OptimParameter& parameter);
  std::vector<at::Tensor> targets_of(Pending& pending, const StateLeaf& leaf,
                                     const TensorSpec& stored, bool& all_fresh);
  static bool is_set(const std::string& option, const OptimizerEntry& entry,
                     const OptimState& optim, const OptimParameter& parameter);
  /// State of the moment it was declared at; false: what there is when it is saved.
  bool is_gathered(const OptimizerEntry& entry) const;
  static bool is_whole(const Pending& pending, const std::unordered_set<std::string>& loaded);
  void expect_step(LiveState& state, Pending& pending, const Manifest& stored,
                   const OptimParameter& parameter);

  std::string root_;
  StateForm form_;
  std::vector<std::string> replicated_;
  std::vector<OwnedGroup> owned_groups_;
  std::vector<OptimizerMember> members_;
  mutable std::vector<double> steps_;  // by member
  std::vector<OptimizerEntry> entries_;
  OptimizerGroups groups_;
  LiveMemory memory_;
  std::vector<std::pair<const OptimizerEntry*, Counter>> counters_;
  /// What is saved as it is then, of the entries that are not gathered.
  std::vector<std::pair<const OptimizerEntry*, std::vector<at::Tensor>>> borrowed_;
  std::vector<Pending> pending_;
  std::exception_ptr deferred_;
  bool seen_ = false;
  bool is_for_load_ = false;  // what declare added is replaced
};

/// A count of steps as PyTorch keeps it. Throws kInvalidArgument, naming `name`: no count, or above
/// 2^24, beyond which a float32 skips integers.
double checked_step(double step, const std::string& name);

}  // namespace tessera::fsdp
