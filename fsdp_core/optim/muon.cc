#include <ATen/ATen.h>
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/fsdp/muon.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace tessera::fsdp {
namespace {

void check_options(const MuonOptions& options) {
  const auto refuse = [](const char* what, const auto& value) {
    fail(Code::kInvalidArgument, fmt::format("Muon: {} is {}", what, value));
  };
  if (!(options.lr() >= 0)) refuse("lr", options.lr());
  if (!(options.momentum() >= 0)) refuse("momentum", options.momentum());
  if (!(options.weight_decay() >= 0)) refuse("weight_decay", options.weight_decay());
  if (!(options.eps() >= 0)) refuse("eps", options.eps());
  if (options.ns_steps() < 0 || options.ns_steps() >= 100) refuse("ns_steps", options.ns_steps());
  const std::string& by = options.adjust_lr_fn();
  if (!by.empty() && by != "original" && by != "match_rms_adamw")
    refuse("adjust_lr_fn", "\"" + by + "\"");
}

double adjusted_lr(const MuonOptions& options, at::IntArrayRef sizes) {
  const auto rows = static_cast<double>(sizes[0]), columns = static_cast<double>(sizes[1]);
  if (options.adjust_lr_fn() == "match_rms_adamw")
    return options.lr() * 0.2 * std::sqrt(std::max(rows, columns));
  return options.lr() * std::sqrt(std::max(1.0, rows / columns));
}

[[noreturn]] void refuse_muon_archive(const char* call) {
  fail(Code::kUnsupported,
       fmt::format("Muon::{}: an archive matches state to parameters by their position, whatever "
                   "their names",
                   call),
       "use fsdp::state_dict(model, optimizer) with tessera::save and tessera::load");
}

}  // namespace

at::Tensor orthogonalised(const at::Tensor& matrix, const MuonOptions& options) {
  const auto [a, b, c] = options.ns_coefficients();
  const bool tall = matrix.size(0) > matrix.size(1);
  at::Tensor x = matrix.to(at::kBFloat16, /*non_blocking=*/false, /*copy=*/true);
  if (tall) x = x.t();
  x.div_(x.norm().clamp_min(options.eps()));
  for (std::int64_t step = 0; step < options.ns_steps(); ++step) {
    const at::Tensor gram = at::matmul(x, x.t());
    x = at::addmm(x, at::addmm(gram, gram, gram, b, c), x, a, 1);
  }
  return tall ? x.t() : x;
}

void split_matrices(const ModuleRef& model, std::vector<at::Tensor>& matrices,
                    std::vector<at::Tensor>& others) {
  const WholeTensors wholes(model);
  for (const at::Tensor& parameter : model->parameters())
    (wholes.sizes(parameter).size() == 2 ? matrices : others).push_back(parameter);
}

Muon::Muon(const ModuleRef& model, const std::vector<torch::optim::OptimizerParamGroup>& groups,
           MuonOptions defaults)
    : Optimizer(groups, std::make_unique<MuonOptions>(defaults)), wholes_(model) {
  check_options(defaults);
  for (const torch::optim::OptimizerParamGroup& group : param_groups())
    for (const at::Tensor& parameter : group.params())
      if (const auto sizes = wholes_.sizes(parameter); sizes.size() != 2)
        fail(Code::kInvalidArgument,
             fmt::format("Muon: a parameter of shape {} is no matrix", Shape(sizes).to_string()),
             "give it to another optimizer: fsdp::split_matrices(model, matrices, others)");
}

Muon::Muon(const ModuleRef& model, std::vector<at::Tensor> parameters, MuonOptions defaults)
    : Muon(model,
           std::vector<torch::optim::OptimizerParamGroup>{
               torch::optim::OptimizerParamGroup(std::move(parameters))},
           std::move(defaults)) {}

at::Tensor Muon::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    at::AutoGradMode grad_mode(true);
    loss = closure();
  }
  at::NoGradGuard no_grad;
  for (torch::optim::OptimizerParamGroup& group : param_groups_) step_group(group);
  return loss;
}

void Muon::step_group(torch::optim::OptimizerParamGroup& group) {
  const auto& options = static_cast<const MuonOptions&>(group.options());
  check_options(options);
  for (at::Tensor& parameter : group.params()) {
    at::Tensor gradient = parameter.grad();
    if (!gradient.defined()) continue;
    gradient = gradient.to(parameter.scalar_type());
    const at::Tensor& momentum = state_of(parameter).momentum_buffer;
    momentum.lerp_(gradient, 1 - options.momentum());
    const at::Tensor update =
        options.nesterov() ? gradient.lerp(momentum, options.momentum()) : momentum;
    // In bf16, in which it is orthogonalised: half the bytes, and the same values.
    const at::Tensor whole = wholes_.gather(parameter, update.to(at::kBFloat16));
    const at::Tensor step = wholes_.part(parameter, orthogonalised(whole, options));
    parameter.mul_(1 - options.lr() * options.weight_decay());
    parameter.add_(step, -adjusted_lr(options, whole.sizes()));
  }
}

MuonParamState& Muon::state_of(const at::Tensor& parameter) {
  std::unique_ptr<torch::optim::OptimizerParamState>& slot =
      state_[parameter.unsafeGetTensorImpl()];
  if (!slot) {
    auto state = std::make_unique<MuonParamState>();
    state->momentum_buffer = at::zeros_like(parameter);
    slot = std::move(state);
  }
  return static_cast<MuonParamState&>(*slot);
}

void Muon::save(torch::serialize::OutputArchive&) const { refuse_muon_archive("save"); }
void Muon::load(torch::serialize::InputArchive&) { refuse_muon_archive("load"); }

}  // namespace tessera::fsdp
