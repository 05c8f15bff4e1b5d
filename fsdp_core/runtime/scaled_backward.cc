#include "fsdp_core/runtime/scaled_backward.h"

#include <torch/csrc/autograd/graph_task.h>

namespace tessera::fsdp::detail {
namespace {

thread_local int scaled_task = -1;

}  // namespace

void mark_scaled_backward() { scaled_task = torch::autograd::get_current_graph_task_id(); }

bool backward_is_scaled() {
  const int task = torch::autograd::get_current_graph_task_id();
  return task >= 0 && task == scaled_task;
}

}  // namespace tessera::fsdp::detail
