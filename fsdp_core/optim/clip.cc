#include <ATen/ATen.h>
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/fsdp/training.h>

#include <cmath>

#include "fsdp_core/runtime/optimizer_in_backward.h"
#include "fsdp_core/runtime/units_of.h"
#include "fsdp_core/unit/ownership.h"

namespace tessera::fsdp {
namespace {

/// |x|_p^p of this rank's own gradients (for infinity: max |x|), in double.
double local_power(const at::Tensor& grad, double p) {
  if (grad.numel() == 0) return 0;
  const at::Tensor norm = at::linalg_vector_norm(grad, p, std::nullopt, false, at::kDouble);
  const double value = norm.item<double>();
  return std::isinf(p) ? value : std::pow(value, p);
}

/// Every rank meets the same extensions in the same order.
double& of_extension(std::vector<std::pair<std::shared_ptr<Communicator>, double>>& parts,
                     std::shared_ptr<Communicator> group) {
  for (auto& [known, sum] : parts)
    if (known == group) return sum;
  return parts.emplace_back(std::move(group), 0).second;
}

}  // namespace

at::Tensor clip_grad_norm_(const ModuleRef& module, double max_norm, double p) {
  if (!(p > 0))
    fail(Code::kInvalidArgument, fmt::format("clip_grad_norm_: p is {}; it must be above 0", p));
  at::NoGradGuard no_grad;
  const auto units = idle_units_of(module, "clip_grad_norm_");
  detail::refuse_steps_in_backward(units, "clip_grad_norm_");
  const bool infinite = std::isinf(p);
  Communicator& comm = units.back()->shard_comm();

  // Each unit's shards add up over its shard group; replicas hold the same, and count once.
  // So do parts of larger tensors over their extension's ranks, which hold the rest alike.
  double total = 0;
  bool any = false;
  std::vector<std::pair<std::shared_ptr<Communicator>, double>> parts;
  std::vector<at::Tensor> grads;
  for (const auto& unit : units) {
    if (unit->shard_comm().global_ranks() != comm.global_ranks())
      fail(Code::kUnsupported,
           fmt::format("clip_grad_norm_: {} is sharded over another group than the outermost unit",
                       unit->label()));
    for (const auto& group : unit->groups()) {
      for (const Param& param : group->params()) {
        // Made where there is no gradient too: all ranks exchange as many sums.
        double& sum = param.extension_dim ? of_extension(parts, unit->comms().extension) : total;
        const at::Tensor& grad = param.shard.grad();
        if (!grad.defined()) continue;
        any = true;
        grads.push_back(grad);
        const double power = local_power(grad, p);
        sum = infinite ? std::max(sum, power) : sum + power;
      }
    }
  }
  std::vector<double> local{total, any ? 1.0 : 0.0};
  for (const auto& [group, sum] : parts) local.push_back(sum);
  at::Tensor sums = at::tensor(local, at::kDouble);
  if (comm.size() > 1) {
    // One call: for infinity both are maxima; else the count's sum is as good as its maximum.
    comm.all_reduce(sums, infinite ? Reduce::kMax : Reduce::kSum, {"", CommPhase::kOptimizer});
  }
  // Parameters that no unit owns are whole on every rank.
  double outside = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    at::Tensor sum = sums.narrow(0, static_cast<std::int64_t>(i) + 2, 1).clone();
    parts[i].first->all_reduce(sum, infinite ? Reduce::kMax : Reduce::kSum,
                               {"", CommPhase::kOptimizer});
    const double power = sum.item<double>();
    outside = infinite ? std::max(outside, power) : outside + power;
  }
  for (const at::Tensor& param : module->parameters()) {
    const at::Tensor& grad = param.grad();
    if (!grad.defined() || owner_of(param)) continue;
    any = true;
    sums[1] = 1.0;
    grads.push_back(grad);
    const double power = local_power(grad, p);
    outside = infinite ? std::max(outside, power) : outside + power;
  }
  if (sums[1].item<double>() == 0)
    fail(Code::kInvalidArgument, "clip_grad_norm_: no rank has a gradient");
  const double power =
      infinite ? std::max(sums[0].item<double>(), outside) : sums[0].item<double>() + outside;
  const double norm = infinite ? power : std::pow(power, 1 / p);
  // As in PyTorch a NaN norm makes every gradient NaN: it is seen at once.
  const double coefficient = std::isnan(norm) ? norm : std::min(1.0, max_norm / (norm + 1e-6));
  for (at::Tensor& grad : grads) grad.mul_(coefficient);
  return at::scalar_tensor(norm, at::kFloat);
}

}  // namespace tessera::fsdp
