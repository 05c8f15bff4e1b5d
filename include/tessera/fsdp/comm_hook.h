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

/// What the runtime does without a hook, divided before and after: all dtypes.
CommHook average_hook();
/// Casts to fp16 (bf16), divides before, reduces, divides after, casts back to the parameter's
/// dtype.
CommHook fp16_compress_hook();
CommHook bf16_compress_hook();

/// For every unit below `module`, which is the outermost unit; before its first backward. Throws,
/// with nothing registered: an inner unit, a hybrid strategy anywhere (the hook would see one of
/// its two reductions), a hook registered already, an empty hook, a backward that ran already.
void register_comm_hook(const ModuleRef& module, CommHook hook);

}  // namespace tessera::fsdp
