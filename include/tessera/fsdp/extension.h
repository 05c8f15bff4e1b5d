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
//               quantised one and its scale: is_transformed(), post_unflatten() and pre_load()
//
// What PyTorch's extensions are asked besides, and why nothing is asked here:
//
//   pre-flatten       the parameter that the module has when fully_shard is called is what is
//                     flattened; DTensors, which have to become local tensors first, do not exist
//   chunk, chunk as   how a value is cut follows from the unit's layout, its mesh and
//   DTensor           sharded_dim(), and moves no data; transformed values are cut in rows
//   gather            is the unit's own collective, on the ranks of its mesh
#include <ATen/core/Tensor.h>
#include <tessera/fsdp/device_mesh.h>

#include <optional>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace tessera::fsdp {

/// One of the tensors that state dicts hold in the place of a parameter.
struct StoredPart {
  std::string name;   // beside the parameter's own: "weight_scale" for "weight"
  at::Tensor tensor;  // dense
};

class Extension {
 public:
  virtual ~Extension() = default;

  /// 1-D: the ranks whose parts make the larger tensors.
  virtual std::optional<DeviceMesh> mesh() const { return std::nullopt; }
  /// The dim that `parameter`, registered in `module` as `name`, is an equal part of, in the order
  /// of mesh(); nullopt: it is the same on every rank of mesh(). Asked once, by fully_shard.
  virtual std::optional<int> sharded_dim(const torch::nn::Module& /*module*/,
                                         const std::string& /*name*/,
                                         const at::Tensor& /*parameter*/) const {
    return std::nullopt;
  }

  /// Whether the next two have work with this parameter; then its state dict is made by a gather,
  /// one parameter at a time. The same on all ranks. A parameter that is a part is refused.
  virtual bool is_transformed(const torch::nn::Module& /*module*/,
                              const std::string& /*name*/) const {
    return false;
  }
  /// From a parameter to what stands for it in state dicts. `whole`: unsharded, in the stored type.
  /// Names, types and shapes may depend on the shape of `whole`, not on its values; all ranks must
  /// give the same values. Not called for optimizer state, which keeps the parameter's shape.
  virtual std::vector<StoredPart> post_unflatten(const torch::nn::Module& module,
                                                 const std::string& name,
                                                 const at::Tensor& whole) const;
  /// Back: called before a load reaches the shards, with whole parts in the order of
  /// post_unflatten; returns the parameter's shape. Where one rank alone has loaded
  /// (rank0_only), only there.
  virtual at::Tensor pre_load(const torch::nn::Module& module, const std::string& name,
                              const std::vector<StoredPart>& stored) const;
};

}  // namespace tessera::fsdp
