#pragma once
// Tensor parallelism beside sharding: linear layers that are cut over the ranks of a mesh dim.
//
//   fsdp::DeviceMesh mesh(world, {2, 4}, {"data", "tensor"});
//   struct MlpImpl : torch::nn::Module {            // up: rows of the weight; down: its columns
//     MlpImpl(fsdp::DeviceMesh tensor)
//         : up(register_module("up", fsdp::ColumnParallelLinear(512, 2048, tensor))),
//           down(register_module("down", fsdp::RowParallelLinear(2048, 512, tensor))) {}
//     torch::Tensor forward(torch::Tensor x) { return down->forward(torch::gelu(up->forward(x))); }
//     ...
//   fsdp::Options options;
//   options.mesh = mesh.sub(0);
//   options.extension = fsdp::tensor_parallel(mesh.sub(1));
//
// All ranks of the tensor dim are given the same input, and have the same output and the same
// gradient of the input. Each layer is made whole from torch's generator and then cut, so that its
// values do not depend on the number of ranks when all seed alike. Sizes that do not divide are
// refused, with the numbers.
#include <ATen/core/Tensor.h>
#include <tessera/fsdp/extension.h>
#include <tessera/fsdp/module.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace tessera::fsdp {

/// Base of modules whose parameters are parts of larger tensors; tensor_parallel() asks them.
class TensorParallelModule {
 public:
  virtual ~TensorParallelModule() = default;
  /// The same as Extension::sharded_dim, for this module's own parameter `name`.
  virtual std::optional<int> sharded_dim(const std::string& name) const = 0;
};

/// An extension that asks each TensorParallelModule which dims are cut. Parameters of other modules
/// must be the same on all ranks of `mesh`.
std::shared_ptr<Extension> tensor_parallel(DeviceMesh mesh);

/// y = x W^T + b for this rank's rows of W (outputs): [..., in] -> [..., out / ranks].
struct ColumnParallelLinearImpl : torch::nn::Module, TensorParallelModule {
  ColumnParallelLinearImpl(std::int64_t in, std::int64_t out, DeviceMesh mesh, bool bias = true);
  torch::Tensor forward(torch::Tensor x);
  std::optional<int> sharded_dim(const std::string& name) const override;

  torch::Tensor weight;  // [out / ranks, in]
  torch::Tensor bias;    // [out / ranks], or undefined

 private:
  DeviceMesh mesh_;
};
FSDP_MODULE(ColumnParallelLinear);

/// y = sum over ranks of x W^T for this rank's columns of W (inputs), + b: [..., in / ranks] ->
/// [..., out]. The bias is whole on every rank.
struct RowParallelLinearImpl : torch::nn::Module, TensorParallelModule {
  RowParallelLinearImpl(std::int64_t in, std::int64_t out, DeviceMesh mesh, bool bias = true);
  torch::Tensor forward(torch::Tensor x);
  std::optional<int> sharded_dim(const std::string& name) const override;

  torch::Tensor weight;  // [out, in / ranks]
  torch::Tensor bias;    // [out], or undefined

 private:
  DeviceMesh mesh_;
};
FSDP_MODULE(RowParallelLinear);

/// The two collectives of tensor parallelism, for layers of one's own.
/// The same tensor; its gradient is summed over the ranks of `mesh`.
at::Tensor copy_to_ranks(const at::Tensor& x, const DeviceMesh& mesh);
/// The sum over the ranks of `mesh`; the gradient passes unchanged.
at::Tensor sum_over_ranks(const at::Tensor& x, const DeviceMesh& mesh);

}  // namespace tessera::fsdp
