#pragma once
// checkpoint(fn, inputs...): calls fn without keeping what its backward needs, and calls it again
// in backward.
//
//   torch::Tensor y = fsdp::checkpoint([&](torch::Tensor x) { return block->forward(x); }, x);
//
// Memory for activations inside fn becomes memory for its inputs, at the price of one more forward
// (and, around a unit, one more gather). Results and gradients are bit-equal to calling
// fn(inputs...): the random state of the devices involved and autocast are as they were. fn and the
// inputs are copied and live as long as the graph.
//
// Inputs: any copyable types; tensors are found in them as tensor_visitor.h says. Results: the
// same. Parameters that fn uses get their gradients whether or not an input needs one; therefore a
// result requires grad whenever grad mode is on, even where nothing in fn does (its backward is
// then empty). kUnsupported in backward: torch::autograd::grad() (gradients of parameters arise in
// an inner backward) and create_graph. kInvalidArgument: fn changes an input in place, or returns
// another number of tensors the second time.
#include <tessera/fsdp/tensor_visitor.h>

#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace tessera::fsdp {

struct CheckpointOptions {
  bool preserve_rng_state = true;  // false: fn draws no random numbers
};

namespace detail {

/// fn from tensors to tensors. `first`: the first call, whose result is kept; else a recomputation.
using CheckpointBody =
    std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs, bool first)>;
/// The tensors of the first call, connected to the graph.
std::vector<at::Tensor> run_checkpoint(CheckpointBody body, std::vector<at::Tensor> inputs,
                                       const CheckpointOptions& options);
at::Tensor checkpoint_placeholder();

inline std::vector<at::Tensor> tensors_at(const TensorPointers& pointers) {
  std::vector<at::Tensor> tensors;
  for (const at::Tensor* pointer : pointers) tensors.push_back(*pointer);
  return tensors;
}

}  // namespace detail

template <class F, class... A>
auto checkpoint(const CheckpointOptions& options, F fn, A&&... inputs) {
  using Arguments = std::tuple<std::decay_t<A>...>;
  using Result = std::decay_t<std::invoke_result_t<F&, std::decay_t<A>&...>>;
  static_assert((std::is_copy_constructible_v<std::decay_t<A>> && ...),
                "checkpoint calls fn twice: inputs must be copyable");
  static_assert(!std::is_void_v<Result>, "checkpoint: fn must return its results");

  const auto collect = [](Arguments& arguments) {
    TensorPointers found;
    std::apply([&](auto&... each) { (collect_tensors(each, found), ...); }, arguments);
    return found;
  };
  auto kept = std::make_shared<Arguments>(std::forward<A>(inputs)...);
  const TensorPointers found = collect(*kept);
  std::vector<at::Tensor> tensors = detail::tensors_at(found);
  for (at::Tensor* each : found)
    *each = detail::checkpoint_placeholder();  // the graph alone keeps the inputs

  auto result = std::make_shared<std::optional<Result>>();
  detail::CheckpointBody body = [fn = std::move(fn), kept, collect, result](
                                    const std::vector<at::Tensor>& values, bool first) mutable {
    Arguments arguments = *kept;
    const TensorPointers places = collect(arguments);
    for (std::size_t i = 0; i < places.size(); ++i) *places[i] = values[i];
    Result returned = std::apply(fn, arguments);
    TensorPointers outputs;
    collect_output_tensors(returned, outputs);
    std::vector<at::Tensor> given = detail::tensors_at(outputs);
    if (first) *result = std::move(returned);
    return given;
  };
  const std::vector<at::Tensor> connected =
      detail::run_checkpoint(std::move(body), std::move(tensors), options);
  Result returned = *std::move(*result);
  result->reset();
  TensorPointers outputs;
  collect_output_tensors(returned, outputs);
  for (std::size_t i = 0; i < outputs.size(); ++i) *outputs[i] = connected[i];
  return returned;
}

template <class F, class... A>
  requires(!std::is_same_v<std::decay_t<F>, CheckpointOptions>)
auto checkpoint(F fn, A&&... inputs) {
  return checkpoint(CheckpointOptions(), std::move(fn), std::forward<A>(inputs)...);
}

}  // namespace tessera::fsdp
