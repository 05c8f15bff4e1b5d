#pragma once
// State dicts: a model and its optimizer as what tessera::save writes and tessera::load fills in
// place, at any world size, sharded or not.
//
//   tessera::save(dir, fsdp::state_dict(model, optimizer), world.ranks());
//   tessera::LoadResult result =
//       tessera::load(dir, fsdp::state_dict(model, optimizer), world.ranks());
//
// Keys are PyTorch's: `model.<fqn>`, `optim.state.<fqn>.<leaf>`, `optim.param_groups.<i>.<key>`, as
// get_state_dict gives them under {"model", "optim"}. A tied parameter stands under each of its
// names. Works as well on a module without fully_shard, in one process.
//
// Several optimizers that share the parameters out, as optimizer_in_backward makes them, are one
// here: state by FQN, and their groups, numbered through in the order of the list. As groups are
// matched by their members, such a checkpoint goes into one optimizer, one optimizer's into such a
// list, and either into units that are cut otherwise.
//
//   kSharded   what this rank holds, without moving tensor data: a flat unit's shards as ranges of
//              each parameter's ravel, a per-parameter unit's as rows; the rest whole on every
//              rank. Collective over the units' ranks where one has an extension, which gathers
//              what it transforms
//   kFull      plain tensors in host memory, gathered one at a time, as they are now: on every
//              rank, or (rank0_only) on the units' first one; collective over the units'
//              ranks. Whole over those that the units shard over: under tensor parallelism each
//              tensor rank has its part
//   kLocal     `<unit>._flat_param` per flat parameter, as it lies, beside what is not sharded, and
//              the optimizer's state of it alike; loads into the same units on any number of ranks
//
// Whether a sharded value is DTensor-like (with its mesh) or ShardedTensor-like (without) follows
// from options.mesh of its unit and is not for the caller to set; kLocal with a mesh is refused.
//
// The state borrows model and optimizer: both must outlive it. It is taken for one save or load;
// units must be idle. Errors (tessera::Error) name the FQN, expected and found.
#include <tessera/fsdp/optimizer_in_backward.h>
#include <tessera/fsdp/training.h>
#include <tessera/layout/mesh.h>
#include <tessera/layout/placement.h>
#include <tessera/state/live_state.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tessera::fsdp {

enum class StateDictType : std::uint8_t { kSharded, kFull, kLocal };
std::string_view state_dict_type_name(StateDictType type);

struct StateDictOptions {
  StateDictType type = StateDictType::kSharded;
  bool rank0_only = false;  // kFull: other ranks hold nothing of what is sharded
  /// kSharded: values of flat units become equal rows (Shard(0)) too, in copies, gathered one
  /// tensor at a time: collective over the units' ranks, as the load is then.
  bool even_chunks = false;
  /// Names of optimizer state (its leaves, "row_sums") that has a shape of its own and is the same
  /// on every rank. All other state must have its parameter's shape.
  std::vector<std::string> replicated_state;
  std::string model_root = "model";
  std::string optim_root = "optim";
};

/// What steps a model's parameters: an optimizer, or those of its units. Borrowed.
class OptimizerRef {
 public:
  OptimizerRef(torch::optim::Optimizer& one) : all_{&one} {}  // NOLINT: implicit
  /// Optimizers of different parameters: state_dict(model, {muon, adamw}).
  template <class... More>
  OptimizerRef(torch::optim::Optimizer& first, torch::optim::Optimizer& second, More&... more)
      : all_{&first, &second, &more...} {}
  /// What optimizer_in_backward gave; an optimizer of other parameters may stand beside
  /// (UnitOptimizer with any name). Throws kInvalidArgument: an empty list, a null optimizer.
  OptimizerRef(const std::vector<UnitOptimizer>& of_units);  // NOLINT: implicit
  const std::vector<torch::optim::Optimizer*>& all() const { return all_; }

 private:
  std::vector<torch::optim::Optimizer*> all_;
};

LiveState state_dict(const ModuleRef& model, const StateDictOptions& options = {});
/// Throws kInvalidArgument too where a unit steps in backward and its optimizer is not among them.
LiveState state_dict(const ModuleRef& model, const OptimizerRef& optimizers,
                     const StateDictOptions& options = {});

/// Scatters a state that lies whole in this process (kFull, of this or another model of the same
/// names) into model and optimizer: one on every rank, or (`rank0_only`) on the units' first rank,
/// whose names and values the others are sent. One tensor at a time; strict; real floating types
/// are cast. Collective over the units' ranks, which must be the same for all units. Throws
/// kInvalidArgument where ranks are given different names or values: nothing has changed then. Only
/// an error that says "partly filled" (a rank is gone, memory ran out) leaves part of it.
void load_full_state(const ModuleRef& model, const OptimizerRef& optimizers, const LiveState& full,
                     bool rank0_only = false, const StateDictOptions& options = {});

/// Keys the optimizer under `optim_root` by integer ids, group by group, as torch.optim's own
/// state_dict() does (with `param_names`), instead of by FQN. Such a state is to be saved, or given
/// to load_full_state; both loads find parameters by FQN whichever way they are keyed. Throws kInvalidArgument: state of a
/// parameter that no group lists.
void key_by_ids(LiveState& state, const std::string& optim_root = "optim");

/// The state of LibTorch's default generator of `device` as a value, for add_value(..,
/// ValueScope::kPerRank); and back. Dropout on a device draws from that device's. set_rng_state
/// throws kCorrupt for what is no such state.
Value rng_state(at::Device device = at::kCPU);
void set_rng_state(const Value& value, at::Device device = at::kCPU);

/// The PyTorch type that a value of the model's state dict corresponds to.
enum class ValueKind : std::uint8_t { kPlain, kShardedTensor, kDTensor };
std::string_view value_kind_name(ValueKind kind);

struct ValueForm {
  std::string fqn;
  ValueKind kind = ValueKind::kPlain;
  Mesh mesh;                          // kDTensor
  std::vector<Placement> placements;  // kDTensor: one per mesh dim; Flat for a flat unit's shards
};
/// One entry for each name of the model, in the order of the state dict.
std::vector<ValueForm> value_forms(const ModuleRef& model, const StateDictOptions& options = {});

}  // namespace tessera::fsdp
