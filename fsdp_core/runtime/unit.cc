#include "fsdp_core/runtime/unit.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "fsdp_core/params/outside_inference.h"
#include "fsdp_core/params/ownership.h"
#include "fsdp_core/runtime/root.h"

namespace tessera::fsdp::detail {
namespace {

/// Notifies the unit that a parameter's gradient is complete in the current graph task.
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

}  // namespace

Unit::Unit(std::vector<torch::nn::Module*> modules, Options options,
           std::shared_ptr<UnitGroups> comms, std::vector<std::unique_ptr<ParamGroup>> groups,
           std::vector<at::Tensor> buffers)
    : modules_(std::move(modules)),
      options_(std::move(options)),
      comms_(std::move(comms)),
      groups_(std::move(groups)),
      full_precision_in_eval_(env_is_on("FSDP_USE_FULL_PREC_IN_EVAL") ||
                              env_is_on("FSDP_FULL_PREC_IN_EVAL")) {
  for (std::size_t first = 0, end = 0; first < groups_.size(); first = end) {
    const std::shared_ptr<UnitGroups>& over = groups_[first]->shared_comms();
    while (end < groups_.size() && groups_[end]->shared_comms() == over) ++end;
    parts_.push_back({over, std::span(groups_).subspan(first, end - first), false, {}});
  }
  for (const std::unique_ptr<ParamGroup>& group : groups_)
    for (const Param& param : group->params())
      for (const Param::Slot& slot : param.slots)
        if (std::ranges::find(modules_, slot.module) == modules_.end())
          keep_alive_.push_back(slot.module->shared_from_this());
  for (at::Tensor& buffer : buffers)
    if (buffer.is_floating_point()) buffers_.emplace_back(buffer, buffer.scalar_type());
}

Unit::~Unit() {
  // Work still in its stream touches the groups. What failed there was reported where it
  // mattered.
  try {
    for (const Part& part : parts_)
      if (root_) root_->gather(*this, *part.comms).record().synchronize();
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

void Unit::rename(const std::vector<std::string>& fqns) {
  name_ = options_.name.empty() ? fqns.front() : options_.name;
  for (const std::unique_ptr<ParamGroup>& group : groups_) group->rename(fqns);
}

std::string Unit::label() const {
  return name_.empty() ? "the root unit" : fmt::format("unit \"{}\"", name_);
}

std::vector<UnitGroups*> Unit::all_comms() {
  std::vector<UnitGroups*> out{comms_.get()};
  for (const Part& part : parts_)
    if (part.comms != comms_) out.push_back(part.comms.get());
  return out;
}

bool Unit::is_root() const { return root_ && root_->is_top(*this); }

bool Unit::trains() const {
  return std::ranges::any_of(groups_, [](const std::unique_ptr<ParamGroup>& group) {
    return std::ranges::any_of(group->params(), &Param::requires_grad);
  });
}

c10::Device Unit::device() const {
  if (!groups_.empty()) return groups_.front()->device();
  return options_.device.value_or(c10::Device(c10::kCPU));
}

bool Unit::wants_full_precision() const {
  return full_precision_in_eval_ && !modules_.front()->is_training();
}

void Unit::set_buffer_precision() {
  if (!options_.mixed_precision.buffer_dtype) return;
  const OutsideInference outside;  // a later training writes into them
  for (auto& [buffer, own] : buffers_) {
    const at::ScalarType wanted =
        wants_full_precision() ? own : *options_.mixed_precision.buffer_dtype;
    if (buffer.scalar_type() != wanted) buffer.set_data(buffer.to(wanted));
  }
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
  for (Part& part : parts_) {
    part.gathered = {};
    part.kept = false;
  }
  to_run_.clear();
}

}  // namespace tessera::fsdp::detail
