#include "fsdp_core/runtime/backward_watch.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <mutex>
#include <utility>
#include <vector>

#include "fsdp_core/runtime/root.h"

namespace tessera::fsdp::detail {
namespace {

namespace autograd = torch::autograd;

/// Everything that a backward from `roots` can reach. What it ran already is still linked.
Use::Nodes graph_below(const autograd::edge_list& roots) {
  Use::Nodes graph;
  std::vector<autograd::Node*> open;
  const auto visit = [&](const autograd::Edge& edge) {
    if (edge.function && graph.insert(edge.function.get()).second)
      open.push_back(edge.function.get());
  };
  for (const autograd::Edge& edge : roots) visit(edge);
  while (!open.empty()) {
    const autograd::Node* node = open.back();
    open.pop_back();
    for (const autograd::Edge& edge : node->next_edges()) visit(edge);
  }
  return graph;
}

class Watch {
 public:
  void add(const std::shared_ptr<Root>& root, const std::shared_ptr<Use>& use) {
    const std::lock_guard lock(mutex_);
    std::erase_if(watched_, [](const Watched& each) { return each.use.expired(); });
    watched_.push_back({root, use});
  }
  std::vector<std::shared_ptr<Root>> in(const Use::Nodes& graph) {
    const std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<Root>> found;
    for (const Watched& each : watched_)
      if (const auto use = each.use.lock(); use && use->is_in(graph))
        if (auto root = each.root.lock()) found.push_back(std::move(root));
    return found;
  }

 private:
  struct Watched {
    std::weak_ptr<Root> root;
    std::weak_ptr<Use>
        use;  // alive as long as its graph: other ranks' nodes are never taken for its own
  };
  std::mutex mutex_;
  std::vector<Watched> watched_;
};

/// Never destroyed, as the engine: autograd's threads may outlive statics.
Watch& watch() {
  static auto* the = new Watch;
  return *the;
}

class WatchedEngine final : public autograd::Engine {
 public:
  explicit WatchedEngine(autograd::Engine& inner) : inner_(inner) {}

  autograd::variable_list execute(const autograd::edge_list& roots,
                                  const autograd::variable_list& inputs, bool keep_graph,
                                  bool create_graph, bool accumulate_grad,
                                  const autograd::edge_list& outputs = {}) override {
    try {
      return inner_.execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
    } catch (...) {
      for (const std::shared_ptr<Root>& root : watch().in(graph_below(roots)))
        root->backward_threw();
      throw;
    }
  }

  // LibTorch holds nodes by one kind of pointer or another, by release.
  using NodePointer = decltype(autograd::impl::grad_accumulator(std::declval<at::Tensor&>()));
  c10::intrusive_ptr<at::ivalue::Future> execute_with_graph_task(
      const std::shared_ptr<autograd::GraphTask>& graph_task, NodePointer graph_root,
      autograd::InputBuffer&& input_buffer) override {
    return inner_.execute_with_graph_task(graph_task, std::move(graph_root),
                                          std::move(input_buffer));
  }
  std::unique_ptr<autograd::AnomalyMetadata> make_anomaly_metadata() override {
    return inner_.make_anomaly_metadata();
  }
  std::unique_ptr<autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    return inner_.get_default_saved_variable_hooks();
  }

 private:
  autograd::Engine& inner_;
};

autograd::Engine& watched_engine() {
  static auto* the = new WatchedEngine(autograd::Engine::get_default_engine());
  return *the;
}

}  // namespace

void watch_backward(const std::shared_ptr<Root>& root, const std::shared_ptr<Use>& use) {
  static const bool installed = [] {
    watched_engine();  // around what is there now
    autograd::set_default_engine_stub(&watched_engine);
    return true;
  }();
  (void)installed;
  watch().add(root, use);
}

}  // namespace tessera::fsdp::detail
