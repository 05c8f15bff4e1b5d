// A unit's forward: what happens before and after the user's.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <torch/csrc/autograd/graph_task.h>

#include "fsdp_core/params/pool.h"
#include "fsdp_core/runtime/backward_watch.h"
#include "fsdp_core/runtime/optimizer_in_backward.h"
#include "fsdp_core/runtime/root.h"
#include "fsdp_core/runtime/unit.h"

namespace tessera::fsdp::detail {
namespace {

void cast_floating(const TensorPointers& tensors, at::ScalarType dtype) {
  for (at::Tensor* tensor : tensors)
    if (tensor->defined() && tensor->is_floating_point() && tensor->scalar_type() != dtype)
      *tensor = tensor->to(dtype);
}

}  // namespace

void Unit::cast_inputs(const TensorPointers& inputs, Use& use) const {
  for (at::Tensor* input : inputs)
    if (!use.input_dtype && input->defined() && input->is_floating_point())
      use.input_dtype = input->scalar_type();
  const MixedPrecision& precision = options_.mixed_precision;
  if (wants_full_precision()) return;
  if (precision.keep_full_precision) {
    if (!groups_.empty()) cast_floating(inputs, groups_.front()->dtypes().stored);
    return;
  }
  const bool casts = is_root() ? precision.cast_root_forward_inputs : precision.cast_forward_inputs;
  if (precision.param_dtype && casts) cast_floating(inputs, *precision.param_dtype);
}

void Unit::cast_outputs(const TensorPointers& outputs, const Use& use) const {
  if (wants_full_precision()) return;
  const MixedPrecision& precision = options_.mixed_precision;
  if (precision.keep_full_precision && use.input_dtype) cast_floating(outputs, *use.input_dtype);
  if (precision.output_dtype) cast_floating(outputs, *precision.output_dtype);
}

std::shared_ptr<Use> Unit::pre_forward(const TensorPointers& inputs) {
  Root& root = Root::of(*this);
  root.check_alive(*this);
  const bool recompute = torch::autograd::get_current_graph_task_id() >= 0;
  if (modules_.size() > 1 && !recompute && root.depth() == 0)
    fail(Code::kInvalidArgument,
         fmt::format("{}, of {} modules, runs outside of the forward of a unit around it", label(),
                     modules_.size()),
         "call fully_shard on the module around them too, and its forward");
  auto use = make_pooled<Use>(weak_from_this(), recompute);
  try {
    if (!recompute) root.forward_begin(*this);
    use->full_precision = wants_full_precision();
    unshard(recompute ? CommPhase::kBackward : CommPhase::kForward, use->full_precision);
    if (!recompute) {
      if (!groups_.empty()) state_.apply(UnitEvent::kForward, name_);
      ++forward_depth_;
      root.entered(*this);
    }
    if (stepper) use->unit_steps = stepper->issued();
    cast_inputs(inputs, *use);
    if (at::GradMode::is_enabled()) use->watch_inputs(inputs);
  } catch (...) {
    if (!recompute) root.forward_failed(*this);
    throw;
  }
  return use;
}

bool Unit::is_last_to_run(const HookPoint& point) {
  if (modules_.size() == 1) return true;
  if (to_run_.empty())
    for (torch::nn::Module* module : modules_) to_run_.push_back(dynamic_cast<HookPoint*>(module));
  std::erase(to_run_, &point);
  return to_run_.empty();
}

void Unit::end_of_pass() {
  if (to_run_.empty()) return;
  to_run_.clear();
  const bool keep = at::GradMode::is_enabled() && !reshard_after_forward_;
  if (!keep && state_.params() == ParamsState::kUnsharded) reshard();
}

void Unit::post_forward(Use& use, const TensorPointers& outputs, const HookPoint& point) {
  cast_outputs(outputs, use);
  const bool gradients = at::GradMode::is_enabled() && use.watch_outputs(outputs);
  if (gradients) {
    std::erase_if(uses_, [](const std::weak_ptr<Use>& known) { return known.expired(); });
    uses_.push_back(use.weak_from_this());
    root_->left(*this, use);
    forward_full_precision_ = use.full_precision;
  }
  if (use.recompute()) return;
  if (--forward_depth_ == 0 && !groups_.empty()) {
    state_.apply(UnitEvent::kForwardEnd, name_);
    const bool root_keeps = is_root() && options_.reshard_after_forward.is_auto();
    const bool keep = gradients && (root_keeps || !reshard_after_forward_);
    if (is_last_to_run(point) && !keep) reshard(/*keep_part=*/gradients);
  }
  if (gradients && root_->depth() == 1) watch_backward(root_, use.shared_from_this());
  root_->forward_end();
}

void Unit::abandon_forward(Use& use) {
  if (!use.recompute() && root_) root_->forward_failed(*this);
}

}  // namespace tessera::fsdp::detail
