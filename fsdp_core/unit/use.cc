#include "fsdp_core/unit/use.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include "fsdp_core/runtime/root.h"
#include "fsdp_core/unit/unit.h"

namespace tessera::fsdp::detail {
namespace {

/// Before every hook of the user's, whenever that was registered: if it throws, peers have to be
/// told, and for that the backward has to have begun.
class OutputHook final : public torch::autograd::FunctionPreHook {
 public:
  explicit OutputHook(std::function<void()> call) : call_(std::move(call)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& grads) override {
    call_();
    return grads;
  }

 private:
  std::function<void()> call_;
};

/// An outer unit's goes before an inner one's where both return the same tensor.
void hook_first(torch::autograd::Node& node, std::function<void()> call) {
  auto& hooks = node.tensor_pre_hooks();
  hooks.insert(hooks.begin(), std::make_unique<OutputHook>(std::move(call)));
}

}  // namespace

void Use::watch_inputs(const TensorPointers& inputs) {
  for (at::Tensor* input : inputs) {
    if (!input->defined() || !input->requires_grad()) continue;
    if (input->is_leaf()) *input = input->view_as(*input);
    const std::size_t index = inputs_.size();
    inputs_.push_back(input->grad_fn().get());
    input->register_hook(
        [self = shared_from_this(), index](const at::Tensor&) { self->input_ready(index); });
    if (std::shared_ptr<Unit> unit = unit_.lock())
      unit->root()->consumers().add(inputs_.back(), weak_from_this(), index);
  }
}

bool Use::watch_outputs(const TensorPointers& outputs) {
  for (at::Tensor* output : outputs) {
    if (!output->defined() || !output->requires_grad() || output->is_leaf()) continue;
    outputs_.push_back(output->grad_fn().get());
    hook_first(*outputs_.back(), [self = shared_from_this(), node = outputs_.back()] {
      if (std::shared_ptr<Unit> unit = self->unit_.lock()) {
        // This gradient completes the units that took the tensor in: they go first, so that at most
        // one unit more than needed is gathered.
        unit->root()->consumers().ready(node);
        unit->pre_backward(self);
      }
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

void Consumers::add(torch::autograd::Node* node, std::weak_ptr<Use> use, std::size_t input) {
  by_node_[node].push_back({std::move(use), input});
}

void Consumers::ready(torch::autograd::Node* node) {
  auto found = by_node_.find(node);
  if (found == by_node_.end()) return;
  const std::vector<Entry> entries = found->second;
  for (const Entry& entry : entries)
    if (std::shared_ptr<Use> use = entry.use.lock()) use->input_ready(entry.input);
}

void Consumers::prune() {
  for (auto at = by_node_.begin(); at != by_node_.end();) {
    std::erase_if(at->second, [](const Entry& entry) { return entry.use.expired(); });
    at = at->second.empty() ? by_node_.erase(at) : std::next(at);
  }
}

}  // namespace tessera::fsdp::detail
