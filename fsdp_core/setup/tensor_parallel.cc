#include <ATen/ATen.h>
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/fsdp/communicator.h>
#include <tessera/fsdp/tensor_parallel.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/linear.h>

namespace tessera::fsdp {
namespace {

constexpr std::string_view kUnit = "tensor parallel";

at::Tensor summed(const at::Tensor& tensor, const DeviceMesh& mesh, CommPhase phase) {
  at::Tensor sum = tensor.detach().contiguous().clone();
  if (mesh.size(0) > 1) mesh.group(0)->all_reduce(sum.view({-1}), Reduce::kSum, {kUnit, phase});
  return sum;
}

/// A node keeps what it needs in IValues.
struct MeshHolder : torch::CustomClassHolder {
  explicit MeshHolder(DeviceMesh m) : mesh(std::move(m)) {}
  DeviceMesh mesh;
};

struct CopyToRanks : torch::autograd::Function<CopyToRanks> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const DeviceMesh& mesh) {
    context->saved_data["mesh"] = c10::IValue::make_capsule(c10::make_intrusive<MeshHolder>(mesh));
    return x.view_as(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const auto holder = context->saved_data["mesh"].toCapsule();
    return {summed(grads[0], static_cast<MeshHolder&>(*holder).mesh, CommPhase::kBackward), {}};
  }
};

struct SumOverRanks : torch::autograd::Function<SumOverRanks> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x,
                            const DeviceMesh& mesh) {
    return summed(x, mesh, CommPhase::kForward);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list grads) {
    return {grads[0], {}};
  }
};

void check(const char* layer, const char* what, std::int64_t size, const DeviceMesh& mesh) {
  if (mesh.ndim() != 1)
    fail(Code::kInvalidArgument,
         fmt::format("{}: a mesh of {} dims; it is cut over one", layer, mesh.ndim()),
         "give mesh.sub(dim)");
  if (size % mesh.size(0) != 0)
    fail(Code::kInvalidArgument,
         fmt::format("{}: {} {} do not divide over {} ranks", layer, size, what, mesh.size(0)));
}

at::Tensor own_part(const at::Tensor& whole, int dim, const DeviceMesh& mesh) {
  const std::int64_t size = whole.size(dim) / mesh.size(0);
  return whole.detach().narrow(dim, mesh.coordinate(0) * size, size).clone();
}

class TensorParallel final : public Extension {
 public:
  explicit TensorParallel(DeviceMesh mesh) : mesh_(std::move(mesh)) {}
  std::optional<DeviceMesh> mesh() const override { return mesh_; }
  std::optional<int> sharded_dim(const torch::nn::Module& module, const std::string& name,
                                 const at::Tensor&) const override {
    const auto* parallel = dynamic_cast<const TensorParallelModule*>(&module);
    return parallel ? parallel->sharded_dim(name) : std::nullopt;
  }

 private:
  DeviceMesh mesh_;
};

}  // namespace

at::Tensor copy_to_ranks(const at::Tensor& x, const DeviceMesh& mesh) {
  return CopyToRanks::apply(x, mesh);
}
at::Tensor sum_over_ranks(const at::Tensor& x, const DeviceMesh& mesh) {
  return SumOverRanks::apply(x, mesh);
}

std::shared_ptr<Extension> tensor_parallel(DeviceMesh mesh) {
  if (mesh.ndim() != 1)
    fail(Code::kInvalidArgument, "tensor_parallel: a mesh of one dim is needed",
         "give mesh.sub(dim)");
  return std::make_shared<TensorParallel>(std::move(mesh));
}

ColumnParallelLinearImpl::ColumnParallelLinearImpl(std::int64_t in, std::int64_t out,
                                                   DeviceMesh mesh, bool with_bias)
    : mesh_(std::move(mesh)) {
  check("ColumnParallelLinear", "outputs", out, mesh_);
  const torch::nn::Linear whole(torch::nn::LinearOptions(in, out).bias(with_bias));
  weight = register_parameter("weight", own_part(whole->weight, 0, mesh_));
  if (with_bias) bias = register_parameter("bias", own_part(whole->bias, 0, mesh_));
}

torch::Tensor ColumnParallelLinearImpl::forward(torch::Tensor x) {
  return at::linear(copy_to_ranks(x, mesh_), weight, bias);
}

std::optional<int> ColumnParallelLinearImpl::sharded_dim(const std::string&) const { return 0; }

RowParallelLinearImpl::RowParallelLinearImpl(std::int64_t in, std::int64_t out, DeviceMesh mesh,
                                             bool with_bias)
    : mesh_(std::move(mesh)) {
  check("RowParallelLinear", "inputs", in, mesh_);
  const torch::nn::Linear whole(torch::nn::LinearOptions(in, out).bias(with_bias));
  weight = register_parameter("weight", own_part(whole->weight, 1, mesh_));
  if (with_bias) bias = register_parameter("bias", whole->bias.detach().clone());
}

torch::Tensor RowParallelLinearImpl::forward(torch::Tensor x) {
  const torch::Tensor sum = sum_over_ranks(at::linear(x, weight), mesh_);
  return bias.defined() ? sum + bias : sum;
}

std::optional<int> RowParallelLinearImpl::sharded_dim(const std::string& name) const {
  if (name == "weight") return 1;
  return std::nullopt;
}

}  // namespace tessera::fsdp
