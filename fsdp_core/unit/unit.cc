#include "fsdp_core/unit/unit.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "fsdp_core/runtime/backward_watch.h"
#include "fsdp_core/runtime/optimizer_in_backward.h"
#include "fsdp_core/runtime/root.h"
#include "fsdp_core/unit/ownership.h"

namespace tessera::fsdp::detail {
namespace {

/// Tells the unit that a parameter's gradient is complete in the current graph task.
class ParamReady final : public torch::autograd::PostAccumulateGradHook {
 public:
  ParamReady(std::weak_ptr<Unit> unit, Param* param) : unit_(std::move(unit)), param_(param) {}
  void operator()(const at::Tensor&) override {
    if (std::shared_ptr<Unit> unit = unit_.lock()) unit->param_ready(*param_);
  }

 private:
  std::weak_ptr<Unit> unit_;
  Param* param_;
};

bool env_is_on(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && std::string_view(value) == "1";
}

void cast_floating(const TensorPointers& tensors, at::ScalarType dtype) {
  for (at::Tensor* tensor : tensors)
    if (tensor->defined() && tensor->is_floating_point() && tensor->scalar_type() != dtype)
      *tensor = tensor->to(dtype);
}

}  // namespace

Unit::Unit(torch::nn::Module& module, Options options, UnitGroups comms,
           std::vector<std::unique_ptr<ParamGroup>> groups, std::vector<at::Tensor> buffers)
    : module_(&module),
      options_(std::move(options)),
      comms_(std::move(comms)),
      groups_(std::move(groups)),
      full_precision_in_eval_(env_is_on("FSDP_USE_FULL_PREC_IN_EVAL") ||
                              env_is_on("FSDP_FULL_PREC_IN_EVAL")) {
  for (const std::unique_ptr<ParamGroup>& group : groups_)
    for (const Param& param : group->params())
      for (const Param::Slot& slot : param.slots)
        if (slot.module != module_) keep_alive_.push_back(slot.module->shared_from_this());
  for (at::Tensor& buffer : buffers)
    if (buffer.is_floating_point()) buffers_.emplace_back(buffer, buffer.scalar_type());
}

Unit::~Unit() {
  // Work still in its stream touches the groups. What failed there was told where it mattered.
  try {
    if (root_) root_->gather(*this).record().synchronize();
  } catch (...) {
  }
  for (const std::unique_ptr<ParamGroup>& group : groups_) {
    for (const Param& param : group->params()) {
      forget(param.compute);
      forget(param.shard);
    }
  }
}

void Unit::install_hooks() {
  for (const std::unique_ptr<ParamGroup>& group : groups_)
    for (Param& param : group->params())
      torch::autograd::impl::set_post_acc_grad_hooks(
          param.compute, std::make_unique<ParamReady>(weak_from_this(), &param));
}

void Unit::rename(const std::string& fqn) {
  name_ = options_.name.empty() ? fqn : options_.name;
  for (const std::unique_ptr<ParamGroup>& group : groups_) group->rename(fqn);
}

std::string Unit::label() const {
  return name_.empty() ? "the root unit" : fmt::format("unit \"{}\"", name_);
}

bool Unit::is_root() const { return root_ && root_->is_top(*this); }

bool Unit::trains() const {
  return std::ranges::any_of(groups_, [](const std::unique_ptr<ParamGroup>& group) {
    return std::ranges::any_of(group->params(), &Param::requires_grad);
  });
}

bool Unit::wants_full_precision() const {
  return full_precision_in_eval_ && !module_->is_training();
}

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

void Unit::set_buffer_precision() {
  if (!options_.mixed_precision.buffer_dtype) return;
  at::NoGradGuard no_grad;
  for (auto& [buffer, own] : buffers_) {
    const at::ScalarType wanted =
        wants_full_precision() ? own : *options_.mixed_precision.buffer_dtype;
    if (buffer.scalar_type() != wanted) buffer.set_data(buffer.to(wanted));
  }
}

// ---- parameters ----

bool Unit::start_unshard(CommPhase phase) {
  if (groups_.empty()) return false;
  const bool precise = wants_full_precision();
  const bool here =
      state_.params() == ParamsState::kUnsharding || state_.params() == ParamsState::kUnsharded;
  for (const std::unique_ptr<ParamGroup>& group : groups_) group->adopt_replaced();
  if (here) {
    const bool stale =
        std::ranges::any_of(groups_, [](const auto& group) { return group->stale(); });
    if (!stale && gathering_full_precision_ == precise) return false;
    reshard();
  }
  root_->free_aside();
  root_->order().before_gather(*this, phase);
  state_.apply(UnitEvent::kGather, name_);
  gathering_full_precision_ = precise;
  // Parts kept for this backward are as good as the shards, unless those changed since.
  const bool from_parts = part_kept_ && phase == CommPhase::kBackward && !precise &&
                          std::ranges::none_of(groups_, [](const auto& g) { return g->stale(); });
  part_kept_ = false;
  for (const std::unique_ptr<ParamGroup>& group : groups_) group->note_version();
  Communicator& comm = from_parts ? *comms_.regather : *comms_.shard;
  Stream& stream = root_->gather(*this);
  stream.run(
      [this, phase, precise, from_parts, &comm] {
        for (const std::unique_ptr<ParamGroup>& group : groups_) {
          if (from_parts) {
            group->regather(comm, {name_, phase});
          } else {
            group->drop_part();
            group->gather(comm, {name_, phase}, precise);
          }
        }
      },
      &comm);
  gathered_ = stream.record();
  return true;
}

void Unit::unshard(CommPhase phase) {
  if (groups_.empty()) return;
  start_unshard(phase);
  if (state_.params() == ParamsState::kUnsharded) return;
  root_->compute().wait(gathered_);
  for (const std::unique_ptr<ParamGroup>& group : groups_) group->attach(gathering_full_precision_);
  state_.apply(UnitEvent::kArrive, name_);
}

void Unit::reshard(bool keep_part) {
  if (groups_.empty() || state_.params() == ParamsState::kSharded) return;
  keep_part &= comms_.regather != nullptr && state_.params() == ParamsState::kUnsharded &&
               !gathering_full_precision_;
  part_kept_ = keep_part;
  state_.apply(UnitEvent::kReshard, name_);
  for (const std::unique_ptr<ParamGroup>& group : groups_) group->detach();
  Stream& stream = root_->gather(*this);
  const Event used = root_->compute().record();
  // Limited: what is gathered next has to wait until compute is done with this memory, and finds it
  // free. Not limited: gathers run ahead of compute, and its memory lies aside until compute is
  // done with it.
  const bool aside = !options_.limit_all_gathers && !used.ready();
  if (!aside) stream.wait(used);
  stream.run([this, keep_part, aside, used] {
    for (const std::unique_ptr<ParamGroup>& group : groups_) {
      if (keep_part) group->keep_part(comms_.regather->size(), comms_.regather->rank());
      if (aside) root_->lay_aside(group->take_gathered(), used);
      group->drop_gathered();
    }
  });
}

void Unit::summon(bool here) {
  if (groups_.empty()) return;
  reshard();
  for (const std::unique_ptr<ParamGroup>& group : groups_) group->adopt_replaced();
  state_.apply(UnitEvent::kSummon, name_);
  Stream& stream = root_->gather(*this);
  stream.wait_for(root_->compute());
  stream.run(
      [this] {
        for (const std::unique_ptr<ParamGroup>& group : groups_)
          group->gather(*comms_.shard, {name_, CommPhase::kSummon}, /*full_precision=*/true);
      },
      comms_.shard.get());
  if (!here) {
    stream.run([this] {
      for (const std::unique_ptr<ParamGroup>& group : groups_) group->drop_gathered();
    });
    return;
  }
  root_->compute().wait(stream.record());
  for (const std::unique_ptr<ParamGroup>& group : groups_) group->attach(/*full_precision=*/true);
}

void Unit::summon_gradients() {
  at::NoGradGuard no_grad;
  const CommTag tag{name_, CommPhase::kSummon};
  for (const std::unique_ptr<ParamGroup>& group : groups_) {
    std::vector<at::Tensor> full = group->full_gradients(*comms_.shard, tag);
    for (std::size_t p = 0; p < full.size(); ++p)
      group->params()[p].compute.mutable_grad() = full[p];
  }
}

void Unit::end_summon(bool write_back) {
  if (groups_.empty()) return;
  for (const std::unique_ptr<ParamGroup>& group : groups_) {
    if (write_back) group->write_back();
    group->hide_gradients();
    group->detach();
  }
  state_.apply(UnitEvent::kSummonEnd, name_);
  Stream& stream = root_->gather(*this);
  stream.wait_for(root_->compute());
  stream.run([this] {
    for (const std::unique_ptr<ParamGroup>& group : groups_) group->drop_gathered();
  });
}

void Unit::agree_requires_grad() {
  for (const std::unique_ptr<ParamGroup>& group : groups_) {
    for (Param& param : group->params()) {
      const bool compute = param.compute.requires_grad(), shard = param.shard.requires_grad();
      if (compute == param.requires_grad && shard == param.requires_grad) continue;
      // One of them changed, or both to the same.
      const bool wanted = !param.requires_grad;
      param.compute.set_requires_grad(wanted);
      param.shard.set_requires_grad(wanted);
      param.requires_grad = wanted;
      if (!wanted) param.shard.mutable_grad().reset();
    }
  }
}

void Unit::reset(bool gradients) {
  state_.apply(gradients ? UnitEvent::kReset : UnitEvent::kAbandon, name_);
  for (const std::unique_ptr<ParamGroup>& group : groups_) {
    group->detach();
    group->drop_gathered();
    group->drop_part();
    if (!gradients) {
      group->hide_gradients();
      continue;
    }
    group->drop_gradients();
    for (Param& param : group->params()) {
      param.used = false;
      param.shard.mutable_grad().reset();
    }
  }
  forward_depth_ = 0;
  uses_.clear();
  runs_.clear();
  gathered_ = {};
  part_kept_ = false;
}

// ---- forward ----

std::shared_ptr<Use> Unit::pre_forward(const TensorPointers& inputs) {
  Root& root = Root::of(*this);
  root.check_alive(*this);
  const bool recompute = torch::autograd::get_current_graph_task_id() >= 0;
  auto use = std::make_shared<Use>(weak_from_this(), recompute);
  try {
    if (!recompute) root.forward_begin(*this);
    unshard(recompute ? CommPhase::kBackward : CommPhase::kForward);
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

void Unit::post_forward(Use& use, const TensorPointers& outputs) {
  cast_outputs(outputs, use);
  const bool gradients = at::GradMode::is_enabled() && use.watch_outputs(outputs);
  if (gradients) {
    std::erase_if(uses_, [](const std::weak_ptr<Use>& known) { return known.expired(); });
    uses_.push_back(use.weak_from_this());
    root_->left(*this, use);
  }
  if (use.recompute()) return;
  if (--forward_depth_ == 0 && !groups_.empty()) {
    state_.apply(UnitEvent::kForwardEnd, name_);
    const bool root_keeps = is_root() && options_.reshard_after_forward.is_auto();
    const bool keep = gradients && (root_keeps || !reshard_after_forward_);
    if (!keep) reshard(/*keep_part=*/gradients);
  }
  if (gradients && root_->depth() == 1) watch_backward(root_, use.shared_from_this());
  root_->forward_end();
}

void Unit::abandon_forward(Use& use) {
  if (!use.recompute() && root_) root_->forward_failed(*this);
}

// ---- backward ----

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
  unshard(CommPhase::kBackward);
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
  bool blind = false;  // a use of which no input's hook will tell
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
  if (options_.mixed_precision.keep_low_precision_grads)
    for (const std::unique_ptr<ParamGroup>& group : groups_) group->lower_gradients();
}

}  // namespace tessera::fsdp::detail
