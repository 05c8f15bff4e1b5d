// A unit's backward: when it begins, when it is complete, and what follows from that.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "fsdp_core/runtime/optimizer_in_backward.h"
#include "fsdp_core/runtime/root.h"
#include "fsdp_core/runtime/unit.h"

namespace tessera::fsdp::detail {

void Unit::pre_backward(const std::shared_ptr<Use>& use) {
  const int task = torch::autograd::get_current_graph_task_id();
  if (use->started_in(task)) return;
  use->start(task);
  root_->check_alive(*this);
  root_->enter_backward();
  // Autograd would put sums of its own in the place of the views that it is to add to.
  if (at::GradMode::is_enabled())
    fail(Code::kUnsupported,
         fmt::format("{}: a backward with create_graph; its gradients would not reach the shards",
                     label()),
         "gradients of gradients need the plain module");
  if (stepper) stepper->check_backward(*this, *use);
  if (!find_run(task)) begin_run(task);
  if (unshards_in_backward || state_.params() == ParamsState::kUnsharding)
    unshard(CommPhase::kBackward, use->full_precision);
  if (!groups_.empty() && state_.phase() != Phase::kForward)
    state_.apply(UnitEvent::kPreBackward, name_, trains());
  for (const std::unique_ptr<ParamGroup>& group : groups_)
    if (std::ranges::any_of(group->params(), &Param::requires_grad)) group->expose_gradients();
  root_->before_backward(*this, *use);
}

Unit::Run* Unit::find_run(int task) {
  auto found = std::ranges::find(runs_, task, &Run::task);
  return found == runs_.end() ? nullptr : &*found;
}

Unit::Run& Unit::begin_run(int task) {
  const Use::Nodes& graph = *torch::autograd::get_current_graph_task_nodes_in_graph();
  Run run;
  run.task = task;
  bool blind = false;  // some use has no input whose hook will run
  for (const std::weak_ptr<Use>& known : uses_) {
    const std::shared_ptr<Use> use = known.lock();
    if (!use || !use->is_in(graph)) continue;
    const int inputs = use->arm(task, graph);
    run.inputs += inputs;
    blind |= inputs == 0;
  }
  for (const std::unique_ptr<ParamGroup>& group : groups_) {
    for (const Param& param : group->params()) {
      if (!param.requires_grad) continue;
      const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(param.compute);
      if (accumulator && graph.contains(accumulator.get())) ++run.params;
    }
  }
  run.by_inputs = run.inputs > 0;
  run.by_params = blind && run.params > 0;
  runs_.push_back(run);
  return runs_.back();
}

void Unit::input_ready(int task) {
  Run* run = find_run(task);
  if (!run) return;
  --run->inputs;
  complete_when_done();
}

void Unit::param_ready(Param& param) {
  param.used = true;
  Run* run = find_run(torch::autograd::get_current_graph_task_id());
  if (!run) {
    for (Run& other : runs_) other.inner_ran = true;
    return;
  }
  --run->params;
  complete_when_done();
}

void Unit::complete_when_done() {
  if (runs_.empty() || !std::ranges::all_of(runs_, &Run::done)) return;
  complete();
}

void Unit::complete_if_started() {
  if (!runs_.empty()) complete();
}

void Unit::complete() {
  runs_.clear();
  if (groups_.empty()) return;
  state_.apply(UnitEvent::kComplete, name_);
  const bool keep = !reshard_after_backward || (!sync && !reshard_after_forward_);
  if (!keep) reshard();
  root_->after_backward(*this);
  if (state_.grads() != GradsState::kAccumulating) return;
  if (!sync) {
    for (const std::unique_ptr<ParamGroup>& group : groups_) group->hide_gradients();
    return;
  }
  state_.apply(UnitEvent::kReduce, name_);
  root_->reducer().reduce(*this);
  state_.apply(UnitEvent::kReduced, name_);
}

void Unit::end_backward() {
  if (groups_.empty()) return;
  const bool keep = !reshard_after_backward || (!sync && !reshard_after_forward_ &&
                                                state_.params() == ParamsState::kUnsharded);
  if (!keep) reshard();
  state_.apply(UnitEvent::kBackwardEnd, name_);
}

void Unit::lower_gradients() {
  if (options_.mixed_precision.keep_low_precision_grads)
    for (const std::unique_ptr<ParamGroup>& group : groups_) group->lower_gradients();
}

}  // namespace tessera::fsdp::detail
