#pragma once
// Unit: the parameters of one fully_shard call: their state machine from forward to reduced gradient.
// As a rule all are sharded over the same ranks; those that options.shard_placement_fn gives a mesh are a
// part of the unit with communicators of its own, which is gathered, freed and reduced with the others.
// Decides when to gather, free and reduce; the root (runtime/root.h) decides on which stream and what
// else to gather ahead.
//
//   pre_forward   gather, attach, [prefetch], cast inputs, hook inputs    unit_forward.cc
//   post_forward  cast outputs, hook outputs, reshard unless kept
//   pre_backward  gather, attach, expose gradients, [prefetch]            unit_backward.cc
//                 (first output gradient)
//   complete      reshard, [prefetch], reduce (last input gradient, see Run)
//   and what gathering, resharding and summoning are                      unit_parameters.cc
//
// One thread per rank at a time: the caller's, or on a GPU autograd's thread of that device.
#include <tessera/fsdp/communicator.h>
#include <tessera/fsdp/module.h>
#include <tessera/fsdp/options.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "fsdp_core/params/param_group.h"
#include "fsdp_core/runtime/unit_groups.h"
#include "fsdp_core/runtime/unit_state.h"
#include "fsdp_core/runtime/use.h"
#include "fsdp_core/stream/stream.h"

namespace tessera::fsdp {
struct CommHook;
struct GatherHook;
}  // namespace tessera::fsdp

namespace tessera::fsdp::detail {

class Root;
class StepInBackward;

class Unit : public std::enable_shared_from_this<Unit> {
 public:
  /// `modules`: those that fully_shard was called on, together.
  Unit(std::vector<torch::nn::Module*> modules, Options options, std::shared_ptr<UnitGroups> comms,
       std::vector<std::unique_ptr<ParamGroup>> groups, std::vector<at::Tensor> buffers);
  ~Unit();

  /// Hooks on parameters need a shared owner.
  void install_hooks();

  const std::string& name() const { return name_; }
  /// FQNs of its modules from the root, once that is known.
  void rename(const std::vector<std::string>& fqns);
  const Options& options() const { return options_; }
  const Strategy& strategy() const { return strategy_of(options_.strategy); }
  /// The first of modules().
  torch::nn::Module& module() { return *modules_.front(); }
  const std::vector<torch::nn::Module*>& modules() const { return modules_; }
  std::vector<std::unique_ptr<ParamGroup>>& groups() { return groups_; }
  const UnitState& state() const { return state_; }
  /// By its options. A group of parameters may have others.
  UnitGroups& comms() { return *comms_; }
  /// Its groups of parameters over the same ranks, which lie together in groups().
  struct Part {
    std::shared_ptr<UnitGroups> comms;
    std::span<const std::unique_ptr<ParamGroup>> groups;
    bool kept = false;  // 1 / regather ranks of the values, from the last forward, for its backward
    Event gathered;
  };
  const std::vector<Part>& parts() const { return parts_; }
  /// comms(), and those of its parts.
  std::vector<UnitGroups*> all_comms();
  bool trains() const;
  /// Where it computes; a unit without parameters: where options say, else the CPU.
  c10::Device device() const;
  bool offloads() const { return options_.cpu_offload.offload_params && !device().is_cpu(); }
  /// The name for messages: "unit \"layers.0\"".
  std::string label() const;

  // -- forward --
  std::shared_ptr<Use> pre_forward(const TensorPointers& inputs);
  /// `point`: the one of its modules whose forward that was.
  void post_forward(Use& use, const TensorPointers& outputs, const HookPoint& point);
  /// The outermost forward is over: a unit some of whose modules did not run in it is freed.
  void end_of_pass();
  void abandon_forward(Use& use);

  // -- backward (from hooks) --
  void pre_backward(const std::shared_ptr<Use>& use);
  void input_ready(int task);
  void param_ready(Param& param);
  /// For the final callback: a backward that no hook completed.
  void complete_if_started();
  void end_backward();
  /// After the last reduction of a backward: gradients in the compute dtype, if options ask for it.
  void lower_gradients();
  /// Forwards whose hooks are remembered: those of the last graphs.
  std::size_t live_uses() const { return uses_.size(); }

  // -- parameters --
  /// Issues the gather unless the parameters are there or on their way; false: there was nothing to
  /// do. Gathers in the dtype that a forward would compute in now; for a backward, in that of the
  /// last forward that a backward can follow.
  bool start_unshard(CommPhase phase);
  bool start_unshard(CommPhase phase, bool full_precision);
  /// When it returns, the compute parameters are there (on the compute stream).
  void unshard(CommPhase phase, bool full_precision);
  /// The same for a gather that is under way.
  void finish_unshard();
  void reshard(bool keep_part = false);
  /// Full values, in the stored dtype (`full_precision`) or in that of a forward, in a state of their
  /// own: forward and backward are refused until end_summon. A kept unit is resharded first. `rank0_only`:
  /// every rank but the first of those that shard a part takes part in it and keeps nothing. `on_host`: in
  /// the host's memory; nothing stays gathered.
  void summon(bool rank0_only, bool on_host, bool full_precision);
  void end_summon(bool write_back);
  /// Full gradients beside summoned parameters; undefined where no rank has one. Collective;
  /// `rank0_only` and `on_host` as above.
  void summon_gradients(bool rank0_only, bool on_host);
  /// requires_grad may be set on either identity: copied to the other; a conflict is an error.
  void agree_requires_grad();

  /// Floating buffers with their own dtypes, whatever they are in now.
  const std::vector<std::pair<at::Tensor, at::ScalarType>>& buffers() const { return buffers_; }
  /// Buffers in buffer_dtype, or in their own dtypes where this unit evaluates in full precision.
  void set_buffer_precision();

  // -- flags, set through training.h --
  bool sync = true;        // reduce at the end of this backward
  bool all_reduce = true;  // ... over the replicas too
  bool reshard_after_backward = true;
  bool unshards_in_backward = true;
  std::shared_ptr<const CommHook> comm_hook;  // reduces in the runtime's place; usually none
  std::function<void(const at::Tensor&)> all_reduce_hook;  // on each reduced gradient; usually none
  std::shared_ptr<const GatherHook> gather_hook;  // gathers in the runtime's place; usually none
  std::shared_ptr<StepInBackward> stepper;        // steps after each reduction; usually none
  std::weak_ptr<Unit> outermost;                  // the one around it that fully_shard made last
  std::vector<std::weak_ptr<Unit>> forward_prefetch, backward_prefetch;  // empty: by the options
  void set_reshard_after_forward(bool yes) { reshard_after_forward_ = yes; }
  bool reshards_after_forward() const { return reshard_after_forward_; }
  bool full_precision_in_eval() const { return full_precision_in_eval_; }
  bool is_root() const;

  /// Sharded and idle again. `gradients`: those in flight and the shard gradients are dropped too.
  void reset(bool gradients);

  const std::shared_ptr<Root>& root() const { return root_; }
  void set_root(std::shared_ptr<Root> root) { root_ = std::move(root); }

 private:
  friend class Root;
  friend class GradientReducer;

  /// One backward (graph task) that this unit takes part in, and what is missing until it is
  /// complete. The inputs' hooks show that; parameters' gradients are counted only where no input
  /// needs a gradient.
  struct Run {
    int task = -1;
    int inputs = 0;  // input gradients still to come
    int params = 0;  // parameter gradients still to come
    bool by_inputs = false;
    bool by_params = false;
    bool inner_ran = false;  // an inner graph task produced gradients too: counts mean nothing
    bool done() const {
      if (!by_inputs && (!by_params || inner_ran)) return false;
      return (!by_inputs || inputs == 0) && (!by_params || params == 0);
    }
  };
  Run* find_run(int task);
  Run& begin_run(int task);
  void complete_when_done();
  void complete();
  void start_gather(Part& part, CommPhase phase);
  bool wants_full_precision() const;
  void cast_inputs(const TensorPointers& inputs, Use& use) const;
  void cast_outputs(const TensorPointers& outputs, const Use& use) const;

  /// Whether no other of its modules is to run before it is freed.
  bool is_last_to_run(const HookPoint& point);

  std::vector<torch::nn::Module*> modules_;  // each owns this unit
  std::vector<const HookPoint*> to_run_;     // of several: those yet to run in this forward
  std::vector<std::shared_ptr<torch::nn::Module>> keep_alive_;
  Options options_;
  std::shared_ptr<UnitGroups> comms_;
  std::vector<std::unique_ptr<ParamGroup>> groups_;
  std::vector<Part> parts_;
  std::vector<std::pair<at::Tensor, at::ScalarType>>
      buffers_;  // floating ones, with their own dtype
  std::string name_;
  std::shared_ptr<Root> root_;

  UnitState state_;
  bool reshard_after_forward_ = true;
  bool full_precision_in_eval_ = false;
  bool gathering_full_precision_ = false;
  bool forward_full_precision_ = false;  // of the last forward that a backward can follow
  int forward_depth_ = 0;
  std::vector<std::weak_ptr<Use>> uses_;
  std::vector<Run> runs_;
};

}  // namespace tessera::fsdp::detail
