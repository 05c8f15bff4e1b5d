#include <ATen/ATen.h>
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/fsdp/communicator.h>
#include <tessera/fsdp/grad_scaler.h>
#include <torch/optim/optimizer.h>

#include <cmath>
#include <map>
#include <unordered_set>
#include <utility>

#include "fsdp_core/runtime/optimizer_in_backward.h"
#include "fsdp_core/runtime/scaled_backward.h"

namespace tessera::fsdp {
namespace {

void refuse_steps_in_backward(const torch::optim::Optimizer& optimizer) {
  if (detail::steps_in_backward(optimizer))
    fail(Code::kUnsupported,
         "ShardedGradScaler does not go with optimizer_in_backward: it steps before gradients are "
         "unscaled");
}

}  // namespace

ShardedGradScaler::ShardedGradScaler(std::shared_ptr<Communicator> group, GradScalerOptions options)
    : group_(std::move(group)), options_(options), scale_(static_cast<float>(options.init_scale)) {
  if (!group_)
    fail(Code::kInvalidArgument, "ShardedGradScaler: no communicator", "pass world.communicator()");
  check_options();
}

void ShardedGradScaler::check_options() const {
  const auto require = [](bool ok, const char* what, double value) {
    if (!ok) fail(Code::kInvalidArgument, fmt::format("ShardedGradScaler: {} is {}", what, value));
  };
  require(scale_ > 0 && std::isfinite(scale_), "scale", scale_);
  require(options_.growth_factor > 1, "growth_factor, which must be above 1,",
          options_.growth_factor);
  require(options_.backoff_factor > 0 && options_.backoff_factor < 1,
          "backoff_factor, which must be between 0 and 1,", options_.backoff_factor);
  require(options_.growth_interval > 0, "growth_interval",
          static_cast<double>(options_.growth_interval));
}

at::Tensor ShardedGradScaler::scale(const at::Tensor& loss) const {
  if (!options_.enabled) return loss;
  // In float: 65536 itself is beyond fp16.
  at::Tensor scaled = (loss.to(at::kFloat) * scale_).to(loss.scalar_type());
  if (scaled.requires_grad())
    scaled.register_hook([](const at::Tensor&) { detail::mark_scaled_backward(); });
  return scaled;
}

bool ShardedGradScaler::unscale_local(torch::optim::Optimizer& optimizer) const {
  at::NoGradGuard no_grad;
  std::map<std::pair<std::string, at::ScalarType>, std::vector<at::Tensor>> gradients;
  std::unordered_set<const c10::TensorImpl*> taken;  // a parameter may be in two groups' lists
  for (torch::optim::OptimizerParamGroup& group : optimizer.param_groups())
    for (const at::Tensor& parameter : group.params()) {
      const at::Tensor& gradient = parameter.grad();
      if (!gradient.defined() || gradient.numel() == 0 ||
          !taken.insert(gradient.unsafeGetTensorImpl()).second)
        continue;
      if (gradient.is_sparse()) fail(Code::kUnsupported, "ShardedGradScaler: a sparse gradient");
      gradients[{gradient.device().str(), gradient.scalar_type()}].push_back(gradient);
    }
  bool found = false;
  for (auto& [key, list] : gradients) {
    const auto options = list.front().options().dtype(at::kFloat).requires_grad(false);
    at::Tensor found_inf = at::zeros({1}, options);
    const at::Tensor inverse = at::full({1}, static_cast<float>(1.0 / scale_), options);
    at::_amp_foreach_non_finite_check_and_unscale_(list, found_inf, inverse);
    found |= found_inf.item<float>() != 0;
  }
  return found;
}

void ShardedGradScaler::unscale_(torch::optim::Optimizer& optimizer) {
  if (!options_.enabled) return;
  refuse_steps_in_backward(optimizer);
  const auto before = seen_.find(&optimizer);
  if (before != seen_.end())
    fail(Code::kInvalidArgument,
         before->second.stepped
             ? "ShardedGradScaler: unscale_ after step: call update() first"
             : "ShardedGradScaler: unscale_ was called already since the last update()");
  // A rank that fails here still owes the others the reduction.
  bool found = true;
  Status failed;
  try {
    found = unscale_local(optimizer);
  } catch (...) {
    failed = current_exception_status();
  }
  at::Tensor flag =
      at::full({1}, found ? 1.f : 0.f, at::TensorOptions().device(group_->device_type()));
  group_->all_reduce(flag, Reduce::kMax, CommTag{"", CommPhase::kOptimizer});
  if (!failed.ok()) throw Error(failed);
  seen_[&optimizer].found_inf = flag.item<float>() != 0;
}

at::Tensor ShardedGradScaler::step(torch::optim::Optimizer& optimizer,
                                   std::function<at::Tensor()> closure) {
  if (!options_.enabled) return optimizer.step(std::move(closure));
  refuse_steps_in_backward(optimizer);
  if (closure)
    fail(Code::kUnsupported, "ShardedGradScaler: step with a closure", "compute the loss before");
  if (seen_.find(&optimizer) == seen_.end()) unscale_(optimizer);
  PerOptimizer& state = seen_[&optimizer];
  if (state.stepped)
    fail(Code::kInvalidArgument,
         "ShardedGradScaler: step was called already since the last update()");
  state.stepped = true;
  return state.found_inf ? at::Tensor() : optimizer.step();
}

void ShardedGradScaler::update() {
  if (!options_.enabled) return;
  if (seen_.empty())
    fail(Code::kInvalidArgument,
         "ShardedGradScaler: update() without a step or unscale_ since the last one");
  bool found = false;
  for (const auto& [optimizer, state] : seen_) found |= state.found_inf;
  seen_.clear();
  if (found) {
    scale_ = static_cast<float>(scale_ * options_.backoff_factor);
    growth_tracker_ = 0;
  } else if (++growth_tracker_ == options_.growth_interval) {
    const float grown = static_cast<float>(scale_ * options_.growth_factor);
    if (std::isfinite(grown)) scale_ = grown;
    growth_tracker_ = 0;
  }
}

void ShardedGradScaler::update(double new_scale) {
  if (!options_.enabled) return;
  seen_.clear();
  scale_ = static_cast<float>(new_scale);
  check_options();
}

bool ShardedGradScaler::found_inf(const torch::optim::Optimizer& optimizer) const {
  const auto state = seen_.find(&optimizer);
  return state != seen_.end() && state->second.found_inf;
}

GradScalerState ShardedGradScaler::state() const {
  return {scale_, options_.growth_factor, options_.backoff_factor, options_.growth_interval,
          growth_tracker_};
}

void ShardedGradScaler::load_state(const GradScalerState& state) {
  scale_ = static_cast<float>(state.scale);
  options_.growth_factor = state.growth_factor;
  options_.backoff_factor = state.backoff_factor;
  options_.growth_interval = state.growth_interval;
  growth_tracker_ = state.growth_tracker;
  check_options();
}

}  // namespace tessera::fsdp
