#pragma once
// Use: one forward of a unit, and what the autograd hooks of that forward know. Hooks belong to a
// forward and live as long as its graph: forward, forward, backward, backward has two uses, each
// with hooks of its own.
//
//   an output's gradient   the first that arrives starts the unit's backward
//   an input's gradient    all of them complete: the unit's backward is done
//
// A tensor has one hook for all units that return it and take it in, on the node that makes it
// (use.cc).
#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <tessera/fsdp/tensor_visitor.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_set>

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
  /// Arms the hooks of the inputs that are in `graph`; returns how many gradients to wait for.
  int arm(int task, const Nodes& graph);
  bool started_in(int task) const { return started_task_ == task; }
  void start(int task) { started_task_ = task; }
  /// An output's gradient has arrived.
  void output_ready();

  /// Computes in the stored dtype though the unit has another: so does its backward.
  bool full_precision = false;
  /// The dtype of the first floating input, before casting.
  std::optional<at::ScalarType> input_dtype;

  /// Input `input`'s gradient is complete in the current graph task. More than once is once.
  void input_ready(std::size_t input);

  // Place in the order of the iteration that this forward belongs to.
  std::uint64_t epoch = 0;
  std::size_t order_index = 0;
  /// How often the unit had stepped in backward when its parameters were gathered.
  std::uint64_t unit_steps = 0;

 private:
  std::weak_ptr<Unit> unit_;
  bool recompute_;
  // Compared, never followed: alive as long as the graph that this use's hooks hang on.
  c10::SmallVector<torch::autograd::Node*, 4> inputs_, outputs_;
  c10::SmallVector<bool, 8> expected_;  // of inputs_, in the armed task
  int armed_task_ = -1;
  int started_task_ = -1;
};

}  // namespace tessera::fsdp::detail
