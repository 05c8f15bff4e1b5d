#pragma once
// WholeTensors: for optimizers that need a parameter's matrix as a whole (Muon, Shampoo and their like),
// which a rank holds a part of. One tensor at a time, so that the memory beside the shards is one
// matrix's; what an optimizer keeps stays sharded, and so in state dicts under the parameter's name.
//
//   fsdp::WholeTensors wholes(model);
//   for (at::Tensor& shard : parameters) {
//     at::Tensor whole = wholes.gather(shard, momentum_of(shard));      // collective
//     shard.sub_(wholes.part(shard, function_of(whole)), lr);
//   }
#include <ATen/core/Tensor.h>
#include <tessera/fsdp/training.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace tessera::fsdp {

/// For the parameters that `model` had when it was made; after fully_shard. Holds the model's units.
class WholeTensors {
 public:
  explicit WholeTensors(const ModuleRef& model);

  /// That of the parameter of which `parameter` is this rank's shard; where no unit owns it, its own. Throws
  /// kUnsupported: a parameter that is itself a part of a larger one (tensor parallel).
  std::vector<std::int64_t> sizes(const at::Tensor& parameter) const;
  /// The whole of what `values` are this rank's part of: they have the shape of `parameter`, of any
  /// dtype, the same on all ranks. On the device where the unit computes. Collective over the unit's
  /// shard group: all its ranks ask for the same parameters in the same order.
  at::Tensor gather(const at::Tensor& parameter, const at::Tensor& values) const;
  /// This rank's part of `whole`, of the shape of `parameter`.
  at::Tensor part(const at::Tensor& parameter, const at::Tensor& whole) const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace tessera::fsdp
