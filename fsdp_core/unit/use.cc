#include "fsdp_core/unit/use.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include "fsdp_core/unit/unit.h"

namespace tessera::fsdp::detail {

void Use::watch_inputs(const TensorPointers& inputs) {
  for (at::Tensor* input : inputs) {
    if (!input->defined() || !input->requires_grad()) continue;
    if (input->is_leaf()) *input = input->view_as(*input);
    const std::size_t index = inputs_.size();
    inputs_.push_back(input->grad_fn().get());
    input->register_hook([self = shared_from_this(), index](const at::Tensor&) { self->input_ready(index); });
  }
}

bool Use::watch_outputs(const TensorPointers& outputs) {
  for (at::Tensor* output : outputs) {
    if (!output->defined() || !output->requires_grad() || output->is_leaf()) continue;
    outputs_.push_back(output->grad_fn().get());
    output->register_hook([self = shared_from_this()](const at::Tensor&) {
      if (std::shared_ptr<Unit> unit = self->unit_.lock()) unit->pre_backward(self);
    });
  }
  return !outputs_.empty();
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
