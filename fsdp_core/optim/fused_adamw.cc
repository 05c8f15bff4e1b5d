#include <ATen/ATen.h>
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/fsdp/fused_adamw.h>

#include <map>
#include <utility>

namespace tessera::fsdp {
namespace {

void check_options(const torch::optim::AdamWOptions& options) {
  const auto refuse = [](const char* what, double value) {
    fail(Code::kInvalidArgument, fmt::format("FusedAdamW: {} is {}", what, value));
  };
  const auto [beta1, beta2] = options.betas();
  if (!(options.lr() >= 0)) refuse("lr", options.lr());
  if (!(options.eps() >= 0)) refuse("eps", options.eps());
  if (!(beta1 >= 0 && beta1 < 1)) refuse("beta 0", beta1);
  if (!(beta2 >= 0 && beta2 < 1)) refuse("beta 1", beta2);
  if (!(options.weight_decay() >= 0)) refuse("weight_decay", options.weight_decay());
}

[[noreturn]] void refuse_archive(const char* call) {
  fail(Code::kUnsupported,
       fmt::format("FusedAdamW::{}: an archive matches state to parameters by their position, "
                   "whatever their names",
                   call),
       "use fsdp::state_dict(model, optimizer) with tessera::save and tessera::load");
}

}  // namespace

/// Parameters of one device and dtype with what the kernel needs beside them.
struct FusedAdamW::Bucket {
  std::vector<at::Tensor> parameters, gradients, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps;
  std::vector<at::Tensor> empty_steps;  // of empty shards, which the kernel does not see
};

FusedAdamW::FusedAdamW(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                       torch::optim::AdamWOptions defaults)
    : Optimizer(groups, std::make_unique<torch::optim::AdamWOptions>(defaults)) {
  check_options(defaults);
}

FusedAdamW::FusedAdamW(std::vector<at::Tensor> parameters, torch::optim::AdamWOptions defaults)
    : FusedAdamW(std::vector<torch::optim::OptimizerParamGroup>{torch::optim::OptimizerParamGroup(
                     std::move(parameters))},
                 std::move(defaults)) {}

at::Tensor FusedAdamW::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    at::AutoGradMode grad_mode(true);
    loss = closure();
  }
  at::NoGradGuard no_grad;
  for (torch::optim::OptimizerParamGroup& group : param_groups_) step_group(group);
  grad_scale_.reset();
  found_inf_.reset();
  return loss;
}

void FusedAdamW::step_group(torch::optim::OptimizerParamGroup& group) {
  const auto& options = static_cast<const torch::optim::AdamWOptions&>(group.options());
  check_options(options);
  std::map<std::pair<std::string, at::ScalarType>, Bucket> buckets;
  for (const at::Tensor& parameter : group.params()) {
    const at::Tensor& gradient = parameter.grad();
    if (!gradient.defined()) continue;
    if (gradient.is_sparse())
      fail(Code::kUnsupported, "FusedAdamW: a sparse gradient", "use torch::optim::SGD for it");
    FusedAdamWParamState& state = state_of(parameter, options.amsgrad());
    Bucket& bucket = buckets[{parameter.device().str(), parameter.scalar_type()}];
    if (parameter.numel() == 0) {
      bucket.empty_steps.push_back(state.step);
      continue;
    }
    bucket.parameters.push_back(parameter);
    bucket.gradients.push_back(gradient.scalar_type() == parameter.scalar_type()
                                   ? gradient
                                   : gradient.to(parameter.scalar_type()));
    bucket.exp_avgs.push_back(state.exp_avg);
    bucket.exp_avg_sqs.push_back(state.exp_avg_sq);
    if (options.amsgrad()) bucket.max_exp_avg_sqs.push_back(state.max_exp_avg_sq);
    bucket.steps.push_back(state.step);
  }
  for (auto& [key, bucket] : buckets) update(bucket, options);
}

void FusedAdamW::update(Bucket& bucket, const torch::optim::AdamWOptions& options) {
  std::vector<at::Tensor> steps = bucket.steps;
  steps.insert(steps.end(), bucket.empty_steps.begin(), bucket.empty_steps.end());
  at::_foreach_add_(steps, 1);
  const auto [beta1, beta2] = options.betas();
  if (!bucket.parameters.empty())
    at::_fused_adamw_(bucket.parameters, bucket.gradients, bucket.exp_avgs, bucket.exp_avg_sqs,
                      bucket.max_exp_avg_sqs, bucket.steps, options.lr(), beta1, beta2,
                      options.weight_decay(), options.eps(), options.amsgrad(),
                      /*maximize=*/false, grad_scale_, found_inf_);
  // The kernel writes past the version counters, by which a unit sees that what it gathered is old.
  for (const at::Tensor& parameter : bucket.parameters)
    parameter.unsafeGetTensorImpl()->bump_version();
  // Where the kernel left the parameters alone there was no step.
  if (found_inf_)
    at::_foreach_sub_(steps,
                      std::vector<at::Tensor>(steps.size(), found_inf_->view(at::IntArrayRef{})));
}

FusedAdamWParamState& FusedAdamW::state_of(const at::Tensor& parameter, bool amsgrad) {
  std::unique_ptr<torch::optim::OptimizerParamState>& slot =
      state_[parameter.unsafeGetTensorImpl()];
  if (!slot) {
    auto state = std::make_unique<FusedAdamWParamState>();
    state->step = at::zeros({}, parameter.options().dtype(at::kFloat).requires_grad(false));
    state->exp_avg = at::zeros_like(parameter);
    state->exp_avg_sq = at::zeros_like(parameter);
    slot = std::move(state);
  }
  auto& state = static_cast<FusedAdamWParamState&>(*slot);
  if (amsgrad && !state.max_exp_avg_sq.defined()) state.max_exp_avg_sq = at::zeros_like(parameter);
  return state;
}

void FusedAdamW::scale_next_step(std::optional<at::Tensor> grad_scale,
                                 std::optional<at::Tensor> found_inf) {
  grad_scale_ = std::move(grad_scale);
  found_inf_ = std::move(found_inf);
}

void FusedAdamW::save(torch::serialize::OutputArchive&) const { refuse_archive("save"); }
void FusedAdamW::load(torch::serialize::InputArchive&) { refuse_archive("load"); }

}  // namespace tessera::fsdp
