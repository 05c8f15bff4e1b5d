#pragma once
// Models too large to be built: construct on the meta device, shard, initialise the shards.
//
//   Net model = nullptr;
//   { fsdp::MetaInit meta;  model = Net(config); }     // shapes only, no memory
//   options.param_init_fn = ...;  fsdp::fully_shard(model, options);
//
// The init functions fill a piece of a parameter so that each element depends on the seed, the
// parameter's name and the element's place in the whole parameter alone: any number of ranks, any
// sharding and any device give the same values, and a whole parameter filled at once is the pieces
// end to end.
#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace tessera::fsdp {

/// While it lives, tensors made on this thread without an explicit device are meta tensors.
/// Exceptions in LibTorch's own layers: BatchNorm's num_batches_tracked is made on the CPU. No
/// values exist: what reads them (item(), printing) throws. Not copyable; one thread.
class MetaInit {
 public:
  MetaInit()
      : no_backend_select_(c10::DispatchKey::BackendSelect),
        meta_(c10::DispatchKeySet(c10::DispatchKey::Meta)) {}
  MetaInit(const MetaInit&) = delete;
  MetaInit& operator=(const MetaInit&) = delete;

 private:
  c10::impl::ExcludeDispatchKeyGuard no_backend_select_;
  c10::impl::IncludeDispatchKeyGuard meta_;
};

namespace init {

/// Which random numbers: those of one parameter.
struct Seed {
  std::uint64_t value = 0;
  /// `seed` is the run's, `fqn` the parameter's.
  static Seed of(std::uint64_t seed, std::string_view fqn);
};

/// Elements [begin, begin + values.numel()) of the row-major ravel of a parameter of `sizes`.
struct Piece {
  at::Tensor values;  // 1-D, or the whole parameter; contiguous; floating
  std::int64_t begin = 0;
  std::vector<std::int64_t> sizes;

  /// All of `parameter`.
  static Piece whole(const at::Tensor& parameter);
};

// All fill in place, whatever requires_grad says. Random values are computed in double and rounded
// to the tensor's dtype. Throws kInvalidArgument: a piece outside its parameter, not contiguous,
// not floating, std or range negative, no fan (kaiming of fewer than two dims).

void zeros_(const Piece& piece);
void ones_(const Piece& piece);
void constant_(const Piece& piece, double value);
/// In [low, high), before rounding.
void uniform_(const Piece& piece, Seed seed, double low = 0, double high = 1);
/// Tails end at 6.66 standard deviations.
void normal_(const Piece& piece, Seed seed, double mean = 0, double std = 1);

enum class Fan : std::uint8_t { kIn, kOut };
/// U(-b, b), b = sqrt(6 / ((1 + a^2) fan)); sizes = [out, in, kernel...]. a = sqrt(5) is what
/// torch::nn::Linear and convolutions start from.
void kaiming_uniform_(const Piece& piece, Seed seed, double a = 0, Fan fan = Fan::kIn);

}  // namespace init

}  // namespace tessera::fsdp
