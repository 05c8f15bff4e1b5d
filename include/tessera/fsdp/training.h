#pragma once
// What a training loop calls on a sharded module, beside forward, backward and step. `module` is
// the outermost unit (a holder or a shared_ptr) unless said otherwise; errors name the unit or the
// FQN.
#include <tessera/fsdp/fully_shard.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace c10 {
struct Event;
}
namespace torch::optim {
class Optimizer;
}

namespace tessera::fsdp {

// ---- per-unit flags, of every unit below `module` ----
/// Off: backward accumulates unsharded gradients and reduces nothing, until a backward with it on.
void set_requires_gradient_sync(const ModuleRef& module, bool on);
/// Off: with replicas, gradients are reduce-scattered but not all-reduced; partial sums add up
/// until a backward with it on.
void set_requires_all_reduce(const ModuleRef& module, bool on);
void set_reshard_after_forward(const ModuleRef& module, bool on);
void set_reshard_after_backward(const ModuleRef& module, bool on);
/// Off, for one unit whose backward reads no parameter's values (an embedding's): they are not gathered
/// for it. LibTorch refuses to read them all the same in most places, and not in all.
void set_unshard_in_backward(const ModuleRef& unit, bool on);
/// Off: the end of a backward does not wait for its reductions, and what is known of the order of
/// units for prefetching stays, for the backwards of other forwards (microbatches). On again before
/// the last of them: gradients must not be read, nor the optimizer stepped, before that.
void set_is_last_backward(const ModuleRef& module, bool on);

/// Gradient synchronisation is off while it lives; each unit's flag is restored after it. Not
/// inside forward or backward.
class NoSync {
 public:
  explicit NoSync(const ModuleRef& module);
  ~NoSync();
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct SummonOptions {
  bool recurse = true;      // units below too
  bool write_back = true;   // edits of this rank's own part persist
  bool rank0_only = false;  // only rank 0 gets full values; not with write_back
  bool with_grads = false;  // .grad of the full parameters too, in their stored dtype
  /// Full values, and gradients, in the host's memory, as CPU tensors of their own: on the unit's
  /// device those of one unit exist at a time. Without rank0_only every rank of a node has a copy.
  bool offload_to_cpu = false;
  /// In the dtype that a forward computes in (mixed_precision.param_dtype) instead of the stored one;
  /// not with write_back, which would round the shards.
  bool cast = false;
};

/// Full parameters (in their stored dtype, or cast) while it lives: the module's members and registry show
/// them. Collective. Not inside forward or backward, not nested.
class SummonFullParams {
 public:
  explicit SummonFullParams(const ModuleRef& module, const SummonOptions& options = {});
  ~SummonFullParams();
  SummonFullParams(const SummonFullParams&) = delete;
  SummonFullParams& operator=(const SummonFullParams&) = delete;
  /// Ends it, collectively; an error of it is thrown here instead of lost in the destructor.
  void finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The total p-norm over all shards (replicas counted once), after which every gradient was scaled
/// by min(1, max_norm / (norm + 1e-6)). p: 1, 2, 3, ..., infinity. Collective: a rank that holds
/// only empty shards takes part. Units may be sharded over a part of the outermost unit's ranks:
/// replicas within it count once, and what is sharded over different parts are different parameters
/// (experts). Throws where no rank has a gradient.
at::Tensor clip_grad_norm_(const ModuleRef& module, double max_norm, double p = 2.0);

/// A gather of a unit that is under way.
class UnshardHandle {
 public:
  /// From here on compute may use the full parameters, which the module shows. Once; later calls do
  /// nothing, nor do calls after a forward or reshard() of the unit.
  void wait();

 private:
  friend UnshardHandle unshard(const ModuleRef& unit, bool async_op);
  std::weak_ptr<detail::Unit> unit_;
};

/// Gathers a unit, not those below it, ahead of its forward, which waits for it by itself; or, with
/// reshard() after it, for a use of your own. `async_op` false: waits for it too.
UnshardHandle unshard(const ModuleRef& unit, bool async_op = true);
/// Frees the gathered parameters of a unit, not of those below it; the module shows its shards. Not
/// inside its forward or backward.
void reshard(const ModuleRef& unit);

/// The next forward's gathers wait for this event, which the program recorded on the device after its
/// optimizer's step, instead of for all that compute was given before that forward. For one forward of
/// `module`, an outermost unit. On CPUs all is over by then, and nothing waits.
void set_post_optim_event(const ModuleRef& module, std::shared_ptr<c10::Event> event);

/// Roots (pipeline stages, say) issue their collectives on the streams of the first of them from now
/// on, instead of each on streams of its own: memory goes from one to the other without a
/// synchronisation. All outermost units, idle, on one device.
void share_comm_ctx(const std::vector<ModuleRef>& modules);

/// Units to gather while this one's forward (backward) begins, in that order, instead of what the
/// options say. An empty list: the options again. The lists are the same on every rank.
void set_modules_to_forward_prefetch(const ModuleRef& unit, const std::vector<ModuleRef>& modules);
void set_modules_to_backward_prefetch(const ModuleRef& unit, const std::vector<ModuleRef>& modules);

/// `function` on every module below and itself, children first, with the full parameters of its own
/// unit at hand, which are written back: as torch::nn::Module::apply for a module that initialises
/// what it holds itself. One unit's parameters exist at a time. Collective.
void apply(const ModuleRef& module, const std::function<void(torch::nn::Module&)>& function);

/// Throws where `optimizer` holds full parameters (built before fully_shard: its step throws too, but
/// may have stepped other parameters then) or is one that local shards would make silently wrong
/// (L-BFGS).
void check_optimizer(const torch::optim::Optimizer& optimizer, const ModuleRef& module);

struct ResetReport {
  /// With optimizer_in_backward: the units that had stepped, on any rank, when the step failed.
  /// Their parameters and optimizer state are not those before the step: load a checkpoint.
  std::vector<std::string> stepped_units;
};

/// After a failed step, collective over all ranks: fresh communicators, parameters as before the
/// step, no gradients. Warns where units had stepped already.
ResetReport reset(const ModuleRef& module);

/// On CPUs the memory of gathered parameters and unsharded gradients is kept for the next unit and
/// step: gives back what is not in use (before a large evaluation, say). Process-wide.
void release_cached_memory();

/// FQN of every unit below `module`, outermost last, with its state ("(Sharded, Idle, None)"): for
/// messages.
std::vector<std::pair<std::string, std::string>> unit_states(const ModuleRef& module);

}  // namespace tessera::fsdp
