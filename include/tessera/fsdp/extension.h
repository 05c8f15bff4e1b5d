#pragma once
// Extension: how the parameters that a unit is given are themselves parts of larger tensors, on
// ranks beside those that the unit shards over. It belongs to one unit (options.extension), so that
// models with and without one live in one process; absent: parameters are whole.
//
//   ranks of a 2-D mesh {data, tensor}:   the unit shards over "data",
//                                         extension->mesh() is "tensor"
//
// Parameters stay plain tensors: what PyTorch's extensions do before flattening and after
// unflattening (DTensor to local tensor and back) has no work to do here, and what they do for
// state dicts (chunk, chunk as DTensor, gather, before loading) follows from the one question asked
// below.
#include <tessera/fsdp/device_mesh.h>

#include <optional>
#include <string>

namespace at {
class Tensor;
}
namespace torch::nn {
class Module;
}

namespace tessera::fsdp {

class Extension {
 public:
  virtual ~Extension() = default;
  /// 1-D: the ranks whose parts make the larger tensors.
  virtual const DeviceMesh& mesh() const = 0;
  /// The dim that `parameter`, registered in `module` as `name`, is an equal part of, in the order
  /// of mesh(); nullopt: it is the same on every rank of mesh().
  virtual std::optional<int> sharded_dim(const torch::nn::Module& module, const std::string& name,
                                         const at::Tensor& parameter) const = 0;
};

}  // namespace tessera::fsdp
