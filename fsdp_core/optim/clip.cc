#include <ATen/ATen.h>
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/fsdp/training.h>

#include <algorithm>
#include <cmath>

#include "fsdp_core/params/ownership.h"
#include "fsdp_core/runtime/abort_peers.h"
#include "fsdp_core/runtime/optimizer_in_backward.h"
#include "fsdp_core/runtime/units_of.h"

namespace tessera::fsdp {
namespace {

/// Sums of |x|^p over gradients (for infinity: maxima of |x|), in double, kept as tensors where the
/// gradients are, so that on devices the host waits for none of them.
class Powers {
 public:
  Powers(double p, c10::Device device) : p_(p), device_(device) {}

  bool infinite() const { return std::isinf(p_); }
  Reduce reduce() const { return infinite() ? Reduce::kMax : Reduce::kSum; }

  at::Tensor zero() const { return at::zeros({}, at::TensorOptions(device_).dtype(at::kDouble)); }
  at::Tensor of(const at::Tensor& gradient) const {
    const at::Tensor norm =
        at::linalg_vector_norm(gradient, p_, std::nullopt, /*keepdim=*/false, at::kDouble);
    return (infinite() ? norm : norm.pow(p_)).to(device_);
  }
  at::Tensor together(const std::vector<at::Tensor>& powers) const {
    if (powers.empty()) return zero();
    const at::Tensor all = at::stack(powers);
    return infinite() ? all.amax() : all.sum();
  }
  at::Tensor root(const at::Tensor& power) const { return infinite() ? power : power.pow(1 / p_); }

 private:
  double p_;
  c10::Device device_;
};

/// The powers of one kind: of the units' own shards, or of parts of larger tensors, by extension.
struct Part {
  std::shared_ptr<Communicator> extension;  // null: none
  std::vector<at::Tensor> powers;
};

/// Every rank meets the same extensions in the same order.
Part& part_of(std::vector<Part>& parts, const std::shared_ptr<Communicator>& extension) {
  for (Part& known : parts)
    if (known.extension == extension) return known;
  return parts.emplace_back(Part{extension, {}});
}

/// What all ranks together find in the units' gradients.
struct Found {
  std::vector<at::Tensor> powers;  // one a kind
  std::vector<at::Tensor> grads;   // of this rank
  at::Tensor any;                  // not 0: a rank has a gradient
};

bool has_rank(const Communicator& comm, int rank) {
  return std::ranges::find(comm.global_ranks(), rank) != comm.global_ranks().end();
}

/// 1 / how many ranks of the outermost unit's group hold what is held here of parameters over `comms`. A group of one
/// rank numbers it by itself, so that its number means nothing in another group.
double weight_of(const UnitGroups& comms, const Communicator& outermost) {
  const Communicator& replicas = *comms.replicate;
  if (replicas.size() == 1) return 1;
  const auto both = std::ranges::count_if(replicas.global_ranks(),
                                          [&](int rank) { return has_rank(outermost, rank); });
  return 1.0 / static_cast<double>(std::max<std::ptrdiff_t>(1, both));
}

/// All shards add up over the outermost unit's group: those of parameters over a part of its ranks too,
/// as other parts hold other parameters (experts). Replicas hold the same, and count once. So do
/// parts of larger tensors over their extension's ranks, which hold the rest alike.
Found find_in_units(const Powers& powers, const std::vector<std::shared_ptr<detail::Unit>>& units) {
  Found found;
  std::vector<Part> parts;
  part_of(parts, nullptr);
  Communicator& comm = *units.back()->comms().shard;
  for (const auto& unit : units)
    for (const auto& group : unit->groups()) {
      const double weight = powers.infinite() ? 1 : weight_of(group->comms(), comm);
      for (const Param& param : group->params()) {
        // Made where there is no gradient too: all ranks exchange as many sums.
        Part& part = part_of(parts, param.extension_dim ? group->comms().extension : nullptr);
        const at::Tensor& gradient = param.shard.grad();
        if (!gradient.defined()) continue;
        found.grads.push_back(gradient);
        if (gradient.numel() == 0) continue;
        const at::Tensor power = powers.of(gradient);
        part.powers.push_back(weight == 1 ? power : power * weight);
      }
    }
  std::vector<at::Tensor> sums;
  for (const Part& part : parts) sums.push_back(powers.together(part.powers));
  sums.push_back(at::full_like(sums.front(), found.grads.empty() ? 0.0 : 1.0));
  const at::Tensor all = at::stack(sums);
  const CommTag tag{"", CommPhase::kOptimizer};
  // One call: for infinity all are maxima; else the count's sum is as good as its maximum.
  if (comm.size() > 1) comm.all_reduce(all, powers.reduce(), tag);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const at::Tensor sum = all.narrow(0, static_cast<std::int64_t>(i), 1).clone();
    if (parts[i].extension) parts[i].extension->all_reduce(sum, powers.reduce(), tag);
    found.powers.push_back(sum[0]);
  }
  found.any = all[static_cast<std::int64_t>(parts.size())];
  return found;
}

/// As in PyTorch a NaN norm makes every gradient NaN: it is seen at once.
void scale(const std::vector<at::Tensor>& grads, const at::Tensor& norm, double max_norm) {
  const at::Tensor coefficient = (max_norm / (norm + 1e-6)).clamp_max(1.0);
  at::Tensor on_host;
  for (at::Tensor grad : grads) {
    if (grad.device() == coefficient.device()) {
      grad.mul_(coefficient);
    } else {  // of an offloaded unit: the host has waited for its gradients, and waits for this
      if (!on_host.defined()) on_host = coefficient.cpu();
      grad.mul_(on_host);
    }
  }
}

void check_groups(const std::vector<std::shared_ptr<detail::Unit>>& units) {
  const Communicator& outermost = *units.back()->comms().shard;
  for (const auto& unit : units)
    for (const UnitGroups* comms : unit->all_comms())
      if (!std::ranges::all_of(comms->shard->global_ranks(),
                               [&](int rank) { return has_rank(outermost, rank); }))
        fail(Code::kUnsupported,
             fmt::format("clip_grad_norm_: {} is sharded over ranks that are not all in the "
                         "outermost unit's group",
                         unit->label()));
}

/// Where the units' groups take tensors.
c10::Device device_of(const std::vector<std::shared_ptr<detail::Unit>>& units) {
  for (auto unit = units.rbegin(); unit != units.rend(); ++unit)
    if (!(*unit)->groups().empty()) return (*unit)->device();
  return units.back()->device();
}

}  // namespace

at::Tensor clip_grad_norm_(const ModuleRef& module, double max_norm, double p) {
  if (!(p > 0))
    fail(Code::kInvalidArgument, fmt::format("clip_grad_norm_: p is {}; it must be above 0", p));
  at::NoGradGuard no_grad;
  const auto units = idle_units_of(module, "clip_grad_norm_");
  detail::refuse_steps_in_backward(units, "clip_grad_norm_");
  check_groups(units);
  const c10::Device device = device_of(units);
  const Powers powers(p, device);
  Found found;
  run_or_abort_peers(units, "clip_grad_norm_", [&] { found = find_in_units(powers, units); });
  // Parameters that no unit owns are whole on every rank.
  for (const at::Tensor& param : module->parameters())
    if (param.grad().defined() && !owner_of(param)) {
      found.grads.push_back(param.grad());
      found.powers.push_back(powers.of(param.grad()));
    }
  // On a device nobody waits to learn that: the norm is 0.
  if (device.is_cpu() && found.grads.empty() && found.any.item<double>() == 0)
    fail(Code::kInvalidArgument, "clip_grad_norm_: no rank has a gradient");
  const at::Tensor norm = powers.root(powers.together(found.powers));
  scale(found.grads, norm, max_norm);
  return norm.to(at::kFloat);
}

}  // namespace tessera::fsdp
