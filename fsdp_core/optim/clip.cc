#include <ATen/ATen.h>
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/fsdp/training.h>

#include <cmath>

#include "fsdp_core/params/ownership.h"
#include "fsdp_core/runtime/abort_peers.h"
#include "fsdp_core/runtime/optimizer_in_backward.h"
#include "fsdp_core/runtime/units_of.h"

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

/// What all ranks together find.
struct Powers {
  double p = 2;
  double sharded = 0;             // of the units' gradients that are no parts of larger ones
  double outside = 0;             // of what every rank holds whole, and of larger ones
  bool any = false;               // a rank has a gradient
  std::vector<at::Tensor> grads;  // of this rank

  bool infinite() const { return std::isinf(p); }
  void add(double& sum, double power) const {
    sum = infinite() ? std::max(sum, power) : sum + power;
  }
  void add_gradient(double& sum, const at::Tensor& grad) {
    any = true;
    grads.push_back(grad);
    add(sum, local_power(grad, p));
  }
};

/// Each unit's shards add up over its shard group; replicas hold the same, and count once. So do
/// parts of larger tensors over their extension's ranks, which hold the rest alike.
void add_units(Powers& powers, const std::vector<std::shared_ptr<detail::Unit>>& units) {
  std::vector<std::pair<std::shared_ptr<Communicator>, double>> parts;
  for (const auto& unit : units)
    for (const auto& group : unit->groups())
      for (const Param& param : group->params()) {
        // Made where there is no gradient too: all ranks exchange as many sums.
        double& sum =
            param.extension_dim ? of_extension(parts, unit->comms().extension) : powers.sharded;
        if (param.shard.grad().defined()) powers.add_gradient(sum, param.shard.grad());
      }
  std::vector<double> local{powers.sharded, powers.any ? 1.0 : 0.0};
  for (const auto& [group, sum] : parts) local.push_back(sum);
  at::Tensor sums = at::tensor(local, at::kDouble);
  const Reduce reduce = powers.infinite() ? Reduce::kMax : Reduce::kSum;
  const CommTag tag{"", CommPhase::kOptimizer};
  // One call: for infinity both are maxima; else the count's sum is as good as its maximum.
  Communicator& comm = units.back()->shard_comm();
  if (comm.size() > 1) comm.all_reduce(sums, reduce, tag);
  powers.sharded = sums[0].item<double>();
  powers.any = sums[1].item<double>() != 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    at::Tensor sum = sums.narrow(0, static_cast<std::int64_t>(i) + 2, 1).clone();
    parts[i].first->all_reduce(sum, reduce, tag);
    powers.add(powers.outside, sum.item<double>());
  }
}

void check_one_group(const std::vector<std::shared_ptr<detail::Unit>>& units) {
  for (const auto& unit : units)
    if (unit->shard_comm().global_ranks() != units.back()->shard_comm().global_ranks())
      fail(Code::kUnsupported,
           fmt::format("clip_grad_norm_: {} is sharded over another group than the outermost unit",
                       unit->label()));
}

}  // namespace

at::Tensor clip_grad_norm_(const ModuleRef& module, double max_norm, double p) {
  if (!(p > 0))
    fail(Code::kInvalidArgument, fmt::format("clip_grad_norm_: p is {}; it must be above 0", p));
  at::NoGradGuard no_grad;
  const auto units = idle_units_of(module, "clip_grad_norm_");
  detail::refuse_steps_in_backward(units, "clip_grad_norm_");
  check_one_group(units);
  Powers powers;
  powers.p = p;
  run_or_abort_peers(units, "clip_grad_norm_", [&] { add_units(powers, units); });
  // Parameters that no unit owns are whole on every rank.
  for (const at::Tensor& param : module->parameters())
    if (param.grad().defined() && !owner_of(param))
      powers.add_gradient(powers.outside, param.grad());
  if (!powers.any) fail(Code::kInvalidArgument, "clip_grad_norm_: no rank has a gradient");
  double power = powers.sharded;
  powers.add(power, powers.outside);
  const double norm = powers.infinite() ? power : std::pow(power, 1 / p);
  // As in PyTorch a NaN norm makes every gradient NaN: it is seen at once.
  const double coefficient = std::isnan(norm) ? norm : std::min(1.0, max_norm / (norm + 1e-6));
  for (at::Tensor& grad : powers.grads) grad.mul_(coefficient);
  return at::scalar_tensor(norm, at::kFloat);
}

}  // namespace tessera::fsdp
