#pragma once
// Options of fully_shard. Names and defaults are PyTorch's FSDP's where it has the same thing.
#include <ATen/core/Tensor.h>
#include <tessera/fsdp/device_mesh.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace tessera::fsdp {

class Communicator;
class Extension;

/// How one parameter is cut.
struct ShardPlacement {
  ShardPlacement(int cut_on = 0, std::optional<DeviceMesh> over = std::nullopt)
      : dim(cut_on), mesh(std::move(over)) {}

  int dim;  // negative: from the end
  /// Over which ranks; not set: the unit's. 1-D: they shard. 2-D: dim 0 replicates, dim 1 shards. Its
  /// gradients are averaged over this mesh alone.
  std::optional<DeviceMesh> mesh;
};
/// From a parameter's FQN below the unit and its whole tensor, whose values may not be there yet.
/// Alike on all ranks: each says the mesh of its own.
using ShardPlacementFn =
    std::function<ShardPlacement(const std::string& fqn, const at::Tensor& whole)>;

enum class ShardingStrategy : std::uint8_t {
  kFullShard,         // parameters, gradients, optimizer state sharded; freed after forward
  kShardGradOp,       // kFullShard, but parameters are kept from forward to backward
  kNoShard,           // replicated; gradients are all-reduced
  kHybridShard,       // kFullShard within a shard group, all-reduce over the replicas
  kHybridShardZero2,  // kShardGradOp within a shard group, all-reduce over the replicas
};
std::string_view strategy_name(ShardingStrategy strategy);

/// How a unit's parameters lie in memory.
enum class MemoryLayout : std::uint8_t {
  kFlat,          // end to end in one buffer, cut in equal shards: collectives without a copy
  kPerParameter,  // each parameter cut on dim 0 (FSDP2): one copy more per gather and reduction
};

enum class BackwardPrefetch : std::uint8_t {
  kPre,   // gather the next unit before this one's gradients are computed
  kPost,  // gather the next unit after this one was resharded
  kNone,
};

/// When a unit's parameters are freed after its forward: automatic (root kept, others freed),
/// never, always, or resharded over groups of k ranks (k divides the shard group's size; 1 means
/// never, the group's size means always). Over k ranks: each keeps 1/k of the parameters until its
/// backward gathers them from those k, neighbours in the shard group, instead of from all.
class ReshardAfterForward {
 public:
  ReshardAfterForward() = default;
  ReshardAfterForward(bool yes) : value_(yes ? kYes : kNo) {}
  ReshardAfterForward(int group_size) : value_(group_size) {}  // kInvalidArgument later if < 1
  bool is_auto() const { return value_ == kAuto; }
  bool is_group() const { return value_ >= 0; }
  bool yes() const { return value_ == kYes; }
  int group_size() const { return value_; }

 private:
  static constexpr int kAuto = -3, kYes = -2, kNo = -1;
  int value_ = kAuto;
};

/// Whether ranks compare what they do, so that a mismatch is an error instead of a hang or of wrong
/// values.
enum class Check : std::uint8_t {
  kOff,
  kCheap,  // wrapping at the first forward, every call of the first step, then one hash a backward
  kFull,   // every call of every step; also where TORCH_DISTRIBUTED_DEBUG is DETAIL
};

struct MixedPrecision {
  std::optional<at::ScalarType> param_dtype;   // compute and gather; unset: as stored
  std::optional<at::ScalarType> reduce_dtype;  // unset: param_dtype, else as stored
  std::optional<at::ScalarType> buffer_dtype;  // cast at the first forward and kept
  std::optional<at::ScalarType> output_dtype;  // floating outputs of the unit are cast
  bool keep_low_precision_grads = false;       // leave .grad in param_dtype after reduction
  bool cast_forward_inputs = false;            // cast floating inputs of this unit
  bool cast_root_forward_inputs = true;        // cast those of the root unit
  /// Class names (as torch::nn::Module::name() gives them, or globs) that auto_wrap keeps in full
  /// precision: inputs are cast up, outputs back.
  std::vector<std::string> full_precision_classes = {"torch::nn::BatchNorm*"};
  /// This unit computes in its stored dtype whatever its parents use: floating inputs are cast up,
  /// outputs back. What auto_wrap sets for those classes.
  bool keep_full_precision = false;
};

struct CpuOffload {
  bool offload_params = false;  // shards, gradients and optimizer on the CPU; pinned where a GPU is
};

struct Options {
  /// Which ranks share. 1-D: they shard. 2-D with a hybrid strategy: dim 0 replicates, dim 1
  /// shards. Neither mesh nor group set: this process alone, an error when WORLD_SIZE says
  /// otherwise.
  std::optional<DeviceMesh> mesh;
  /// Instead of a mesh: the shard group, and for hybrid strategies the group of replicas.
  std::shared_ptr<Communicator> process_group;
  std::shared_ptr<Communicator> replicate_group;

  ShardingStrategy strategy = ShardingStrategy::kFullShard;
  ReshardAfterForward reshard_after_forward;
  MemoryLayout layout = MemoryLayout::kFlat;
  /// Asked once for each parameter. A dim other than 0: with the per-parameter layout, and divisible by
  /// the number of shards. A mesh: not with NO_SHARD or an extension.
  ShardPlacementFn shard_placement_fn;
  MixedPrecision mixed_precision;
  CpuOffload cpu_offload;

  BackwardPrefetch backward_prefetch = BackwardPrefetch::kPre;
  bool forward_prefetch = false;
  int max_prefetch_count = 1;
  bool limit_all_gathers = true;
  /// One gather stream per process group instead of one for all.
  bool unshard_stream_per_group = false;
  /// At most so many units' gradients are in reduction at a time. With more than one, compute waits for
  /// a reduction only when so many are behind it; each keeps its unit's unsharded gradients in memory.
  int reduce_scatter_max_input_buffers = 1;
  /// Gives reductions over the shards a communicator of their own, so that gathers do not queue
  /// behind them. Unset: done on devices with options.mesh, except with BackwardPrefetch::kPost,
  /// which issues its gathers first.
  /// Set: needs options.mesh.
  std::optional<bool> separate_reduce_scatter_group;
  /// On CPUs: gathers and reductions run on a thread beside compute, and units are gathered ahead in
  /// forward too. The outermost unit's setting counts. Unset: on where a launcher started the ranks over
  /// Gloo and each has two cores or more (the cores it may run on, divided by LOCAL_WORLD_SIZE or, where
  /// that is not set, by WORLD_SIZE).
  std::optional<bool> communication_thread;
  /// Reduces by a sum and divides in a kernel of ours. Not set: the backend averages where it can
  /// (NCCL), unless fp16 or gradient_divide_factor needs a division of its own.
  bool force_sum_reduction_for_comms = false;

  /// Neither sharded, nor cast, broadcast, moved or reduced: these modules and what is below them (but
  /// for units there), their parameters and buffers wherever else those are registered, these
  /// parameters, and what units below ignore. Refused: what a unit owns already.
  std::vector<std::shared_ptr<torch::nn::Module>> ignored_modules;
  std::vector<at::Tensor> ignored_parameters;

  /// Broadcast parameters and buffers from the group's rank 0 (and across replicas) first.
  bool sync_module_states = false;
  /// Fills the direct parameters and buffers of a module built on the meta device. Where it throws on
  /// one rank, fully_shard throws on all, and what was on the meta device is there again: call it
  /// again. Set on all ranks, or with sync_module_states.
  std::function<void(torch::nn::Module&)> param_init_fn;
  std::optional<at::Device> device;

  /// Rank-wide average by default; set: gradients are divided by this instead.
  std::optional<double> gradient_divide_factor;
  /// Parameters are themselves parts of larger tensors (extension.h, tensor_parallel.h). Not set: they
  /// are whole.
  std::shared_ptr<Extension> extension;

  /// One bit per parameter is all-reduced; a parameter unused on every rank keeps an undefined
  /// gradient.
  bool find_unused_parameters = false;

  /// The outermost unit's setting applies to its whole tree. CommCounts::check_calls and check_bytes
  /// count the traffic.
  Check check = Check::kCheap;
  /// Throws before a reduction, naming parameter, rank and index of its first NaN or Inf.
  bool check_nan = false;
  std::string name;  // shown in messages; default: the unit's FQN
};

}  // namespace tessera::fsdp
