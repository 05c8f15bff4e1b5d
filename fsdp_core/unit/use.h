#pragma once
// Use: one forward of a unit, and what the autograd hooks of that forward know. Hooks belong to a
// forward and live as long as its graph: forward, forward, backward, backward has two uses, each
// with hooks of its own.
//
//   output hooks   the first gradient that reaches an output starts the unit's backward
//   input hooks    fire when an input's gradient is complete; all of them: the unit's backward is done
#include <ATen/core/Tensor.h>
#include <tessera/fsdp/tensor_visitor.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace tessera::fsdp::detail {

class Unit;

class Use : public std::enable_shared_from_this<Use> {
 public:
  using Nodes = std::unordered_set<torch::autograd::Node*>;

  Use(std::weak_ptr<Unit> unit, bool recompute) : unit_(std::move(unit)), recompute_(recompute) {}

  /// A forward inside a backward.
  bool recompute() const { return recompute_; }
  /// Registers the input hooks. A leaf is replaced by a view of itself, whose hooks die with the
  /// graph.
  void watch_inputs(const TensorPointers& inputs);
  /// Registers the output hooks. True when a gradient can come.
  bool watch_outputs(const TensorPointers& outputs);

  bool is_in(const Nodes& graph) const;
  /// Expects the inputs that belong to this graph task; their number.
  int arm(int task, const Nodes& graph);
  bool started_in(int task) const { return started_task_ == task; }
  void start(int task) { started_task_ = task; }

  /// Computes in the stored dtype though the unit has another: so does its backward.
  bool full_precision = false;
  /// Of the first floating input, before casting.
  std::optional<at::ScalarType> input_dtype;

  /// Input `input`'s gradient is complete in the current graph task. More than once is once.
  void input_ready(std::size_t input);

  // Where it stands in the order of the iteration it belongs to.
  std::uint64_t epoch = 0;
  std::size_t order_index = 0;
  /// How often the unit had stepped in backward when its parameters were gathered.
  std::uint64_t unit_steps = 0;

 private:
  std::weak_ptr<Unit> unit_;
  bool recompute_;
  // Compared, never followed: alive as long as the graph that this use's hooks hang on.
  std::vector<torch::autograd::Node*> inputs_, outputs_;
  std::vector<bool> expected_;
  int armed_task_ = -1;
  int started_task_ = -1;
};

/// Which uses took a tensor in, by the node that makes it. An entry counts while its use lives,
/// which keeps the node alive.
class Consumers {
 public:
  void add(torch::autograd::Node* node, std::weak_ptr<Use> use, std::size_t input);
  void ready(torch::autograd::Node* node);
  /// Forgets uses that are gone.
  void prune();
  std::size_t size() const { return by_node_.size(); }

 private:
  struct Entry {
    std::weak_ptr<Use> use;
    std::size_t input;
  };
  std::unordered_map<torch::autograd::Node*, std::vector<Entry>> by_node_;
};

}  // namespace tessera::fsdp::detail
