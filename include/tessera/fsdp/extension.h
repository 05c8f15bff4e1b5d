#pragma once
// Extension: what a unit's parameters are beyond plain tensors of their own. It belongs to one unit
// (options.extension, given when the unit is made), so that models with different extensions, and
// without one, live in one process. Every question has a default, which is what a unit without an
// extension does.
//
// Two kinds of use, apart or together:
//
//   parts       the parameters are themselves parts of larger tensors, on ranks beside those
//               that the unit shards over: mesh() and sharded_dim(). See
//               tensor_parallel.h.
//                   ranks of a 2-D mesh {data, tensor}:   the unit shards over "data",
//                                                         extension->mesh() is "tensor"
//   transforms  checkpoints hold something else than the parameter: three tensors of a fused one, a
//               quantised one and its scale: is_transformed() and what is asked after it
//
// Where each is asked, on the way of a parameter to a file and back:
//
//   fully_shard     pre_flatten -> sharded_dim -> shards
//   state_dict      shards -> whole -> post_unflatten -> chunk or chunk_as_dtensor -> file
//   load            file -> chunks -> gather -> pre_load -> shards
//
// They are those of PyTorch's FSDPExtensions. What is not transformed is cut as the unit's layout
// has cut it, and moves no data.
#include <ATen/core/Tensor.h>
#include <tessera/fsdp/device_mesh.h>
#include <tessera/layout/placement.h>
#include <tessera/tensor/box.h>

#include <optional>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace tessera::fsdp {

class Communicator;

/// One of the tensors that state dicts hold in the place of a parameter.
struct StoredPart {
  std::string name;   // beside the parameter's own: "weight_scale" for "weight"
  at::Tensor tensor;  // dense
};

class Extension {
 public:
  virtual ~Extension() = default;

  /// What the module's parameter becomes before it is sharded: cut, of another type, laid out
  /// anew. Dense, contiguous, on the same device; of one shape and type on all ranks that the unit
  /// shards and replicates over and on those of mesh(). `parameter` has its values, those of the
  /// first rank under sync_module_states, and stays as it is: a call that fails gives it back.
  /// Asked once, by fully_shard.
  virtual at::Tensor pre_flatten(const torch::nn::Module& /*module*/, const std::string& /*name*/,
                                 const at::Tensor& parameter) const {
    return parameter;
  }

  /// 1-D: the ranks whose parts make the larger tensors.
  virtual std::optional<DeviceMesh> mesh() const { return std::nullopt; }
  /// The dim that `parameter`, registered in `module` as `name`, is an equal part of, in the order
  /// of mesh(); nullopt: it is the same on every rank of mesh(). Asked once, by fully_shard, of
  /// what pre_flatten gave.
  virtual std::optional<int> sharded_dim(const torch::nn::Module& /*module*/,
                                         const std::string& /*name*/,
                                         const at::Tensor& /*parameter*/) const {
    return std::nullopt;
  }

  /// Whether what follows has work with this parameter; then its state dict is made by a gather,
  /// one parameter at a time. The same on all ranks. A parameter that is a part is refused.
  virtual bool is_transformed(const torch::nn::Module& /*module*/,
                              const std::string& /*name*/) const {
    return false;
  }
  /// From a parameter to what stands for it in state dicts. `whole`: unsharded, in the stored type.
  /// Names, types and shapes may depend on the shape of `whole`, not on its values; all ranks must
  /// give the same values, and one part at least. Not called for optimizer state, which keeps the
  /// parameter's shape.
  /// Default: the parameter, under its name.
  virtual std::vector<StoredPart> post_unflatten(const torch::nn::Module& module,
                                                 const std::string& name,
                                                 const at::Tensor& whole) const;

  /// SHARDED, of a unit without a mesh (ShardedTensor-like values): the box of `part` that rank
  /// `index` of `count` keeps. The boxes of all ranks hold every element once; boxes may be empty.
  /// Asked of names, types and shapes, not of values, by each rank for itself; never of a part
  /// without dims, which is whole on every rank. Default: rows, as torch.chunk cuts them.
  virtual Box chunk(const StoredPart& part, int index, int count) const;
  /// SHARDED, of a unit with a mesh (DTensor-like values): how `part` lies on the mesh dim that
  /// the unit shards over; Shard(d) or Replicate. Asked as chunk is. Default: Shard(0).
  virtual Placement chunk_as_dtensor(const StoredPart& part, const Mesh& mesh) const;
  /// Back, of a SHARDED state: the whole of what `ranks` hold a chunk of each, on every rank.
  /// `chunks`: by rank. Collective over `ranks`. Not asked of what is whole on every rank. Default:
  /// one all-gather, padded to the longest chunk; of very unequal chunks, a broadcast of each.
  virtual at::Tensor gather(const StoredPart& chunk, const Shape& whole,
                            const std::vector<Box>& chunks, Communicator& ranks) const;

  /// Back: called before a load reaches the shards, with whole parts in the order of
  /// post_unflatten; returns the parameter's shape, in its type or, for a floating one, any
  /// floating type. Where one rank alone has loaded (rank0_only), only there. Default: the one
  /// part; several are refused.
  virtual at::Tensor pre_load(const torch::nn::Module& module, const std::string& name,
                              const std::vector<StoredPart>& stored) const;
};

}  // namespace tessera::fsdp
