#pragma once
// Communication hooks: a reduction of gradients of your own, in place of the runtime's.
//
//   fsdp::register_comm_hook(model, fsdp::fp16_compress_hook());
//   fsdp::register_comm_hook(model, [](fsdp::GradientBucket& bucket) {
//     bucket.comm.reduce_scatter_into(bucket.shard, bucket.gradient, fsdp::Reduce::kSum,
//                                     bucket.tag);
//     bucket.shard.div_(bucket.ranks);
//   });
//
// The hook owns averaging: around it the runtime divides nothing. It runs once per unit, dtype and
// backward, on the stream that reduces, in the order of the reductions; what it throws fails the
// step. Every rank registers the same hook.
#include <tessera/fsdp/communicator.h>
#include <tessera/fsdp/training.h>

#include <functional>
#include <string>
#include <type_traits>
#include <utility>

namespace tessera::fsdp {

/// One unit's gradients of one dtype, for the length of a call.
struct GradientBucket {
  Communicator& comm;  // shards: the shard group; NO_SHARD: all ranks
  CommTag tag;         // for the hook's calls on `comm`
  /// Unsharded, 1-D, in the reduce dtype. Shards: rank-major, padded, comm.size() x shard.numel().
  /// NO_SHARD: the result is left here; it may be replaced by a tensor of another floating dtype.
  at::Tensor gradient;
  /// Shards: where the result goes, presized. NO_SHARD: undefined.
  at::Tensor shard;
  at::ScalarType parameter_dtype;  // of the stored parameter and of its .grad
  double ranks = 1;                // what the average divides by (gradient_divide_factor where set)
  /// ranks = predivide x postdivide, near its square root: what keeps a sum in fp16 in range.
  double predivide = 1;
  double postdivide = 1;
};

struct CommHook {
  using Function = std::function<void(GradientBucket&)>;

  CommHook() = default;
  template <class F>
    requires(!std::is_same_v<std::remove_cvref_t<F>, CommHook> &&
             std::is_constructible_v<Function, F>)
  CommHook(F&& f) : function(std::forward<F>(f)) {}

  Function function;
  /// It casts down and back itself: the result's place is presized in the stored dtype instead of
  /// the reduce dtype.
  bool low_precision = false;
  std::string name = "a hook of the user's";  // for messages; ranks compare it
};

/// The runtime's own reduction as a hook, dividing before and after the sum for every dtype.
CommHook average_hook();
/// Casts to fp16 (bf16), divides before, reduces, divides after, casts back to the parameter's
/// dtype.
CommHook fp16_compress_hook();
CommHook bf16_compress_hook();

/// One gather of a unit's parameters of one dtype, for the length of a call.
struct GatherBucket {
  Communicator& comm;  // the shard group
  CommTag tag;         // for the hook's calls on `comm`
  at::Tensor shard;    // this rank's, 1-D, in the dtype of a forward; its own slot of `output`
  at::Tensor
      output;  // comm.size() x shard.numel(), rank-major: filled by the hook, alike on all ranks
};

/// A gather of your own (set_custom_all_gather of FSDP2), for forward and backward. Not asked:
/// gathers in the stored dtype (evaluation in full precision, SummonFullParams, state dicts), so that
/// what is saved is exact, and those from parts kept over k ranks.
struct GatherHook {
  std::function<void(GatherBucket&)> function;
  std::string name = "a gather hook of the user's";  // for messages; ranks compare it
};

/// Parameters go over the wire in bf16, a half of fp32's bytes.
GatherHook bf16_gather_hook();
/// In float8 (e4m3), with one scale for each rank's shard: a quarter of fp32's bytes, a half of
/// bf16's. All ranks compute with the same rounded values; the shards stay exact.
GatherHook float8_gather_hook();

/// Sets it for every unit below `module`, from the next forward on. An empty function restores the
/// runtime's own gather.
void set_custom_all_gather(const ModuleRef& module, GatherHook hook);

/// `hook` gets each reduced gradient of the units below `module` (1-D, of this rank, in the reduce
/// dtype) before it is divided, cast and added to .grad: after the reduce-scatter, with replicas after
/// the all-reduce, on the same stream. Meant for a further reduction, for example over ranks that
/// no unit knows of. An empty function removes it.
void set_all_reduce_hook(const ModuleRef& module, std::function<void(const at::Tensor&)> hook);

/// For every unit below `module`, which is the outermost unit; before its first backward. Throws,
/// with nothing registered: an inner unit, a hybrid strategy anywhere (the hook would see one of
/// its two reductions), a hook registered already, an empty hook, a backward that ran already.
void register_comm_hook(const ModuleRef& module, CommHook hook);

}  // namespace tessera::fsdp
