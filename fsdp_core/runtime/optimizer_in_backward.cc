#include "fsdp_core/runtime/optimizer_in_backward.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/fsdp/optimizer_in_backward.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <mutex>
#include <unordered_set>

#include "fsdp_core/runtime/scaled_backward.h"
#include "fsdp_core/runtime/units_of.h"

namespace tessera::fsdp {
namespace detail {
namespace {

std::mutex steppers_mutex;
std::unordered_set<const torch::optim::Optimizer*>& steppers() {
  static std::unordered_set<const torch::optim::Optimizer*> all;
  return all;
}

}  // namespace

StepInBackward::StepInBackward(std::shared_ptr<torch::optim::Optimizer> optimizer)
    : optimizer_(std::move(optimizer)) {
  const std::lock_guard lock(steppers_mutex);
  steppers().insert(optimizer_.get());
}

StepInBackward::~StepInBackward() {
  const std::lock_guard lock(steppers_mutex);
  steppers().erase(optimizer_.get());
}

void StepInBackward::check_backward(const Unit& unit, const Use& use) const {
  if (use.unit_steps != issued_)
    fail(
        Code::kUnsupported,
        fmt::format("a second backward through {} after its optimizer has stepped in backward: its "
                    "parameters are no longer those of the forward",
                    unit.label()),
        "run a forward for each backward");
  if (backward_is_scaled())
    fail(Code::kUnsupported,
         fmt::format("a backward of a loss that ShardedGradScaler scaled: {} steps in backward and "
                     "would take scaled gradients",
                     unit.label()),
         "train in bf16, or step after backward");
}

void StepInBackward::step(Unit& unit) {
  optimizer_->step();
  for (const std::unique_ptr<ParamGroup>& group : unit.groups()) group->drop_shard_gradients();
  stepped_ = true;
}

bool steps_in_backward(const torch::optim::Optimizer& optimizer) {
  const std::lock_guard lock(steppers_mutex);
  return steppers().contains(&optimizer);
}

void refuse_steps_in_backward(const std::vector<std::shared_ptr<Unit>>& units, const char* call) {
  for (const std::shared_ptr<Unit>& unit : units)
    if (unit->stepper)
      fail(Code::kUnsupported,
           fmt::format("{} does not go with optimizer_in_backward: {} steps, and frees its "
                       "gradients, as soon as they are reduced",
                       call, unit->label()));
}

}  // namespace detail

namespace {

using detail::Unit;

std::vector<std::pair<std::string, at::Tensor>> parameters_of(Unit& unit) {
  std::vector<std::pair<std::string, at::Tensor>> out;
  for (const std::unique_ptr<ParamGroup>& group : unit.groups())
    for (const Param& param : group->params()) out.emplace_back(param.fqn, param.shard);
  return out;
}

void check_before(Unit& unit) {
  if (unit.stepper)
    fail(Code::kInvalidArgument,
         fmt::format("optimizer_in_backward: {} has an optimizer already", unit.label()));
  if (!unit.sync || !unit.all_reduce)
    fail(Code::kInvalidArgument,
         fmt::format("optimizer_in_backward: gradient synchronisation of {} is off", unit.label()));
  for (const auto& [fqn, shard] : parameters_of(unit))
    if (shard.grad().defined())
      fail(Code::kInvalidArgument,
           fmt::format("optimizer_in_backward: \"{}\" has a gradient that waits for a step", fqn),
           "step, or clear the gradients, first");
}

void check_optimizer_of(Unit& unit, const torch::optim::Optimizer* optimizer) {
  if (!optimizer)
    fail(Code::kInvalidArgument,
         fmt::format("optimizer_in_backward: no optimizer for {}", unit.label()));
  if (dynamic_cast<const torch::optim::LBFGS*>(optimizer))
    fail(Code::kUnsupported, "optimizer_in_backward: L-BFGS needs all gradients at once",
         "use a first-order optimizer");
  std::vector<at::Tensor> held;
  for (const torch::optim::OptimizerParamGroup& group : optimizer->param_groups())
    held.insert(held.end(), group.params().begin(), group.params().end());
  const auto mine = parameters_of(unit);
  const auto holds = [](const auto& list, const at::Tensor& tensor, auto of) {
    return std::ranges::any_of(list, [&](const auto& each) { return of(each).is_same(tensor); });
  };
  for (const at::Tensor& tensor : held)
    if (!holds(mine, tensor, [](const auto& each) { return each.second; }))
      fail(Code::kInvalidArgument,
           fmt::format("optimizer_in_backward: the optimizer for {} holds a tensor that is no "
                       "parameter of it",
                       unit.label()),
           "build it from the parameters that the factory is given");
  for (const auto& [fqn, shard] : mine)
    if (shard.requires_grad() && !holds(held, shard, [](const auto& each) { return each; }))
      fail(Code::kInvalidArgument,
           fmt::format("optimizer_in_backward: the optimizer for {} lacks \"{}\"", unit.label(),
                       fqn));
}

}  // namespace

std::vector<UnitOptimizer> optimizer_in_backward(const ModuleRef& module,
                                                 const OptimizerFactory& factory) {
  if (!factory) fail(Code::kInvalidArgument, "optimizer_in_backward: the factory is empty");
  const auto units = idle_units_of(module, "optimizer_in_backward");
  for (const auto& unit : units) check_before(*unit);
  std::vector<std::pair<std::shared_ptr<Unit>, std::shared_ptr<torch::optim::Optimizer>>> made;
  for (const auto& unit : units) {
    if (unit->groups().empty()) continue;
    std::vector<at::Tensor> shards;
    for (auto& [fqn, shard] : parameters_of(*unit)) shards.push_back(shard);
    made.emplace_back(unit, factory(std::move(shards)));
    check_optimizer_of(*unit, made.back().second.get());
  }
  for (auto& [unit, optimizer] : made)
    unit->stepper = std::make_shared<detail::StepInBackward>(std::move(optimizer));
  return optimizers_in_backward(module);
}

std::vector<UnitOptimizer> optimizers_in_backward(const ModuleRef& module) {
  std::vector<UnitOptimizer> out;
  for (const auto& unit : units_of(module, "optimizers_in_backward"))
    if (unit->stepper)
      out.push_back({unit->name(), unit->stepper->optimizer(), parameters_of(*unit)});
  return out;
}

}  // namespace tessera::fsdp
