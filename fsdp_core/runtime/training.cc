#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/fsdp/training.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>

#include "fsdp_core/runtime/optimizer_in_backward.h"
#include "fsdp_core/runtime/units_of.h"

namespace tessera::fsdp {

void set_requires_gradient_sync(const ModuleRef& module, bool on) {
  const auto units = idle_units_of(module, "set_requires_gradient_sync");
  if (!on) detail::refuse_steps_in_backward(units, "set_requires_gradient_sync(false)");
  for (const auto& unit : units) unit->sync = on;
}

void set_requires_all_reduce(const ModuleRef& module, bool on) {
  const auto units = idle_units_of(module, "set_requires_all_reduce");
  if (!on) detail::refuse_steps_in_backward(units, "set_requires_all_reduce(false)");
  for (const auto& unit : units) unit->all_reduce = on;
}

void set_reshard_after_forward(const ModuleRef& module, bool on) {
  for (const auto& unit : idle_units_of(module, "set_reshard_after_forward"))
    unit->set_reshard_after_forward(on);
}

void set_reshard_after_backward(const ModuleRef& module, bool on) {
  for (const auto& unit : idle_units_of(module, "set_reshard_after_backward"))
    unit->reshard_after_backward = on;
}

struct NoSync::Impl {
  std::vector<std::pair<std::shared_ptr<detail::Unit>, bool>> before;
};

NoSync::NoSync(const ModuleRef& module) : impl_(std::make_unique<Impl>()) {
  const auto units = idle_units_of(module, "NoSync");
  detail::refuse_steps_in_backward(units, "NoSync");
  for (const auto& unit : units) {
    impl_->before.emplace_back(unit, unit->sync);
    unit->sync = false;
  }
}

NoSync::~NoSync() {
  for (auto& [unit, sync] : impl_->before) unit->sync = sync;
}

void UnshardHandle::wait() {
  const auto unit = unit_.lock();
  unit_.reset();
  if (unit && unit->state().params() == ParamsState::kUnsharding &&
      unit->state().phase() == Phase::kIdle)
    unit->finish_unshard();
}

UnshardHandle unshard(const ModuleRef& unit, bool async_op) {
  UnshardHandle handle;
  for (const auto& each : units_of(unit, "unshard", /*recurse=*/false)) {
    each->start_unshard(CommPhase::kForward);
    handle.unit_ = each;
  }
  if (!async_op) handle.wait();
  return handle;
}

void reshard(const ModuleRef& unit) {
  for (const auto& each : idle_units_of(unit, "reshard", /*recurse=*/false)) each->reshard();
}

void set_unshard_in_backward(const ModuleRef& unit, bool on) {
  for (const auto& each : idle_units_of(unit, "set_unshard_in_backward", /*recurse=*/false))
    each->unshards_in_backward = on;
}

void set_is_last_backward(const ModuleRef& module, bool on) {
  const auto units = idle_units_of(module, "set_is_last_backward");
  if (!on) detail::refuse_steps_in_backward(units, "set_is_last_backward(false)");
  for (const auto& unit : units) unit->root()->is_last_backward = on;
}

void set_post_optim_event(const ModuleRef& module, std::shared_ptr<c10::Event> event) {
  if (!event) fail(Code::kInvalidArgument, "set_post_optim_event: no event");
  const auto units = idle_units_of(module, "set_post_optim_event");
  const auto& top = units.back();
  if (!top->is_root())
    fail(Code::kInvalidArgument,
         fmt::format("set_post_optim_event: {} is not an outermost unit", top->label()));
  const c10::DeviceType type = top->root()->device().type();
  if (type == c10::kCPU) return;
  if (event->device_type() != type)
    fail(Code::kInvalidArgument,
         fmt::format("set_post_optim_event: an event of {}, and the model is on {}",
                     c10::DeviceTypeName(event->device_type()), c10::DeviceTypeName(type)));
  top->root()->gather_after(device_event(std::move(event)));
}

void share_comm_ctx(const std::vector<ModuleRef>& modules) {
  std::shared_ptr<detail::Root> first;
  for (const ModuleRef& module : modules) {
    const auto units = idle_units_of(module, "share_comm_ctx");
    const auto& top = units.back();
    if (!top->is_root())
      fail(Code::kInvalidArgument,
           fmt::format("share_comm_ctx: {} is not an outermost unit", top->label()));
    if (!first)
      first = top->root();
    else
      top->root()->share_streams(*first);
  }
}

void check_optimizer(const torch::optim::Optimizer& optimizer, const ModuleRef& module) {
  if (dynamic_cast<const torch::optim::LBFGS*>(&optimizer))
    fail(Code::kUnsupported,
         "L-BFGS on shards: its dot products would be of this rank's part alone and silently wrong",
         "use a first-order optimizer");
  for (const auto& unit : units_of(module, "check_optimizer"))
    for (const auto& group : unit->groups())
      for (const Param& param : group->params())
        for (const torch::optim::OptimizerParamGroup& held : optimizer.param_groups())
          for (const at::Tensor& tensor : held.params())
            if (tensor.is_same(param.compute))
              fail(Code::kInvalidArgument,
                   fmt::format("the optimizer holds the full parameter \"{}\": it was built before "
                               "fully_shard and would never see a gradient",
                               param.fqn),
                   "build it from module->parameters() after fully_shard");
}

namespace {

/// On any rank of the unit's groups, which are fresh ones.
bool stepped_anywhere(detail::Unit& unit) {
  if (!unit.stepper) return false;
  at::Tensor flag = at::full({1}, unit.stepper->stepped() ? 1.f : 0.f,
                             at::TensorOptions(unit.groups().front()->device()));
  for (const UnitGroups* comms : unit.all_comms())
    for (Communicator* comm : {comms->shard.get(), comms->replicate.get()})
      if (comm->size() > 1) comm->all_reduce(flag, Reduce::kMax, {unit.name(), CommPhase::kCheck});
  unit.stepper->forget_step();
  return flag.item<float>() != 0;
}

}  // namespace

ResetReport reset(const ModuleRef& module) {
  ResetReport report;
  for (const auto& unit : units_of(module, "reset")) {
    for (UnitGroups* comms : unit->all_comms()) comms->refresh(unit->options());
    unit->root()->reset();
    if (stepped_anywhere(*unit)) report.stepped_units.push_back(unit->name());
  }
  if (!report.stepped_units.empty())
    TORCH_WARN(
        fmt::format("fsdp::reset: {} of the units had stepped in the backward that failed "
                    "(the first: \"{}\"): load a checkpoint before going on",
                    report.stepped_units.size(), report.stepped_units.front()));
  return report;
}

std::vector<std::pair<std::string, std::string>> unit_states(const ModuleRef& module) {
  std::vector<std::pair<std::string, std::string>> out;
  for (const auto& unit : units_of(module, "unit_states"))
    out.emplace_back(unit->name(), unit->state().to_string());
  return out;
}

}  // namespace tessera::fsdp
