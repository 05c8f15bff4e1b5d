#include "fsdp_core/runtime/backward_watch.h"

#include <ATen/record_function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <mutex>
#include <utility>
#include <vector>

#include "fsdp_core/runtime/root.h"

namespace tessera::fsdp::detail {
namespace {

class Watch {
 public:
  void add(const std::shared_ptr<Root>& root, const std::shared_ptr<Use>& use) {
    const std::lock_guard lock(mutex_);
    std::erase_if(awaited_, [](const Awaited& each) { return each.use.expired(); });
    awaited_.push_back({root, use});
    if (observer_ == at::INVALID_CALLBACK_HANDLE)
      observer_ = at::addGlobalCallback(
          at::RecordFunctionCallback(&Watch::on_node).scopes({at::RecordScope::BACKWARD_FUNCTION}));
  }

  /// Those whose outputs are in `graph`; they are awaited no more.
  std::vector<std::shared_ptr<Root>> take(const Use::Nodes& graph) {
    const std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<Root>> found;
    std::erase_if(awaited_, [&](const Awaited& each) {
      const std::shared_ptr<Use> use = each.use.lock();
      if (!use) return true;
      if (!use->is_in(graph)) return false;
      if (auto root = each.root.lock()) found.push_back(std::move(root));
      return true;
    });
    if (awaited_.empty() && observer_ != at::INVALID_CALLBACK_HANDLE)
      at::removeCallback(std::exchange(observer_, at::INVALID_CALLBACK_HANDLE));
    return found;
  }

 private:
  struct Awaited {
    std::weak_ptr<Root> root;
    std::weak_ptr<Use>
        use;  // alive as long as its graph: other ranks' nodes are never taken for its own
  };
  static std::unique_ptr<at::ObserverContext> on_node(const at::RecordFunction&);

  std::mutex mutex_;
  std::vector<Awaited> awaited_;
  at::CallbackHandle observer_ = at::INVALID_CALLBACK_HANDLE;
};

/// Never destroyed: autograd's threads may outlive statics.
Watch& watch() {
  static auto* the = new Watch;
  return *the;
}

std::unique_ptr<at::ObserverContext> Watch::on_node(const at::RecordFunction&) {
  thread_local int last_task = -1;
  const int task = torch::autograd::get_current_graph_task_id();
  if (task < 0 || task == last_task) return nullptr;
  last_task = task;
  for (const std::shared_ptr<Root>& root :
       watch().take(*torch::autograd::get_current_graph_task_nodes_in_graph()))
    root->backward_began();
  return nullptr;
}

}  // namespace

void watch_backward(const std::shared_ptr<Root>& root, const std::shared_ptr<Use>& use) {
  watch().add(root, use);
}

}  // namespace tessera::fsdp::detail
