#include "fsdp_core/runtime/use.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "fsdp_core/params/pool.h"
#include "fsdp_core/runtime/unit.h"

namespace tessera::fsdp::detail {
namespace {

/// Runs before every hook of the user's, whenever that was registered: if the user's hook throws,
/// peers must learn it, and for that the backward must have begun.
class TensorHook final : public torch::autograd::FunctionPreHook, public Pooled {
 public:
  /// The hook of the tensor that `node` makes; added where there is none.
  static TensorHook& of(torch::autograd::Node& node) {
    auto& hooks = node.tensor_pre_hooks();
    for (const auto& hook : hooks)
      if (auto* known = dynamic_cast<TensorHook*>(hook.get())) return *known;
    return static_cast<TensorHook&>(**hooks.insert(hooks.begin(), std::make_unique<TensorHook>()));
  }

  void add_producer(std::shared_ptr<Use> use) {
    // An outer unit's goes before an inner one's where both return the same tensor.
    producers_.insert(producers_.begin(), std::move(use));
  }
  void add_consumer(const std::shared_ptr<Use>& use, std::size_t input) {
    auto* gone = std::remove_if(consumers_.begin(), consumers_.end(),
                                [](const Consumer& known) { return known.use.expired(); });
    consumers_.erase(gone, consumers_.end());
    consumers_.push_back({use, input});
  }

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& grads) override {
    // This gradient completes the units that took the tensor in: they go first, so that at most one
    // unit more than needed is gathered; and last, for a unit that returns what it took in.
    notify_consumers();
    for (std::size_t i = 0; i < producers_.size(); ++i) {
      const std::shared_ptr<Use> producer = producers_[i];
      producer->output_ready();
      notify_consumers();
    }
    return grads;
  }

 private:
  struct Consumer {
    std::weak_ptr<Use> use;  // its outputs' hooks hold it
    std::size_t input;
  };
  void notify_consumers() {
    for (std::size_t i = 0; i < consumers_.size(); ++i)
      if (const std::shared_ptr<Use> use = consumers_[i].use.lock())
        use->input_ready(consumers_[i].input);
  }

  c10::SmallVector<std::shared_ptr<Use>, 2> producers_;
  c10::SmallVector<Consumer, 2> consumers_;
};

}  // namespace

void Use::watch_inputs(const TensorPointers& inputs) {
  for (at::Tensor* input : inputs) {
    if (!input->defined() || !input->requires_grad()) continue;
    if (input->is_leaf()) *input = input->view_as(*input);
    inputs_.push_back(input->grad_fn().get());
    TensorHook::of(*inputs_.back()).add_consumer(shared_from_this(), inputs_.size() - 1);
  }
}

bool Use::watch_outputs(const TensorPointers& outputs) {
  for (at::Tensor* output : outputs) {
    if (!output->defined() || !output->requires_grad() || output->is_leaf()) continue;
    outputs_.push_back(output->grad_fn().get());
    TensorHook::of(*outputs_.back()).add_producer(shared_from_this());
  }
  return !outputs_.empty();
}

void Use::output_ready() {
  if (const std::shared_ptr<Unit> unit = unit_.lock()) unit->pre_backward(shared_from_this());
}

bool Use::is_in(const Nodes& graph) const {
  for (torch::autograd::Node* node : outputs_)
    if (graph.contains(node)) return true;
  return false;
}

int Use::arm(int task, const Nodes& graph) {
  armed_task_ = task;
  expected_.assign(inputs_.size(), false);
  int count = 0;
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    expected_[i] = graph.contains(inputs_[i]);
    count += expected_[i] ? 1 : 0;
  }
  return count;
}

void Use::input_ready(std::size_t input) {
  const int task = torch::autograd::get_current_graph_task_id();
  if (task != armed_task_ || !expected_[input]) return;
  expected_[input] = false;
  if (std::shared_ptr<Unit> unit = unit_.lock()) unit->input_ready(task);
}

}  // namespace tessera::fsdp::detail
