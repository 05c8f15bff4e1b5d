// A custom autograd Function whose backward runs the body again with grad mode on, and a backward
// of its own through it. Parameters accumulate in that inner backward; inputs' gradients are handed
// on.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/fsdp/checkpoint.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/custom_class.h>

#include <mutex>

namespace tessera::fsdp::detail {
namespace {

/// What else than its inputs decides what the body computes: random generators and autocast, of the
/// CPU and of the inputs' devices.
class Surroundings {
 public:
  Surroundings(const std::vector<at::Tensor>& inputs, bool with_rng)
      : cache_(at::autocast::is_autocast_cache_enabled()) {
    add(at::Device(at::kCPU), with_rng);
    for (const at::Tensor& input : inputs)
      if (!knows(input.device()) && !input.is_meta()) add(input.device(), with_rng);
  }

  /// Makes them so.
  void apply() const {
    at::autocast::set_autocast_cache_enabled(cache_);
    for (const Entry& entry : entries_) {
      at::autocast::set_autocast_enabled(entry.device.type(), entry.autocast);
      if (entry.autocast) at::autocast::set_autocast_dtype(entry.device.type(), entry.dtype);
      if (!entry.random.defined()) continue;
      at::Generator generator = at::globalContext().defaultGenerator(entry.device);
      const std::lock_guard lock(generator.mutex());
      generator.set_state(entry.random);
    }
  }

 private:
  struct Entry {
    at::Device device;
    bool autocast;
    at::ScalarType dtype;
    at::Tensor random;
  };
  bool knows(at::Device device) const {
    for (const Entry& entry : entries_)
      if (entry.device == device) return true;
    return false;
  }
  void add(at::Device device, bool with_rng) {
    const bool autocast = at::autocast::is_autocast_enabled(device.type());
    Entry entry{device,
                autocast,
                autocast ? at::autocast::get_autocast_dtype(device.type()) : at::kFloat,
                {}};
    if (with_rng) {
      at::Generator generator = at::globalContext().defaultGenerator(device);
      const std::lock_guard lock(generator.mutex());
      entry.random = generator.get_state();
    }
    entries_.push_back(std::move(entry));
  }

  bool cache_;
  std::vector<Entry> entries_;
};

struct State : torch::CustomClassHolder {
  State(CheckpointBody given, const CheckpointOptions& asked, const std::vector<at::Tensor>& inputs)
      : body(std::move(given)), options(asked), surroundings(inputs, asked.preserve_rng_state) {}
  CheckpointBody body;
  CheckpointOptions options;
  Surroundings surroundings;
  std::size_t outputs = 0;
};

class Checkpoint : public torch::autograd::Function<Checkpoint> {
 public:
  // `anchor` makes the result part of the graph where no input needs a gradient.
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context,
                                                at::TensorList inputs, const at::Tensor& /*anchor*/,
                                                const c10::intrusive_ptr<State>& state) {
    const std::vector<at::Tensor> values = inputs.vec();
    std::vector<std::uint32_t> versions;
    for (const at::Tensor& value : values) versions.push_back(version_of(value));
    std::vector<at::Tensor> outputs = state->body(values, /*first=*/true);
    for (std::size_t i = 0; i < values.size(); ++i)
      if (version_of(values[i]) != versions[i])
        fail(Code::kInvalidArgument,
             fmt::format("checkpoint: the function changes tensor {} of its inputs in place; its "
                         "second call would see "
                         "another input",
                         i),
             "work on a clone of the input");
    state->outputs = outputs.size();
    context->save_for_backward(values);
    context->saved_data["state"] = c10::IValue::make_capsule(state);
    context->set_materialize_grads(false);
    return outputs;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    check_plain_backward();
    const auto state =
        c10::static_intrusive_pointer_cast<State>(context->saved_data["state"].toCapsule());
    std::vector<at::Tensor> inputs;
    for (const at::Tensor& saved : context->get_saved_variables())
      inputs.push_back(saved.detach().set_requires_grad(saved.requires_grad()));
    run_again(*state, inputs, gradients);
    torch::autograd::variable_list input_gradients;
    for (at::Tensor& input : inputs)
      input_gradients.push_back(input.requires_grad() ? input.mutable_grad() : at::Tensor());
    input_gradients.emplace_back();  // anchor
    input_gradients.emplace_back();  // state
    return input_gradients;
  }

 private:
  static std::uint32_t version_of(const at::Tensor& tensor) {
    return tensor.is_inference() ? 0 : static_cast<std::uint32_t>(tensor._version());
  }

  static void check_plain_backward() {
    if (!torch::autograd::Engine::get_default_engine().is_checkpoint_valid())
      fail(Code::kUnsupported,
           "checkpoint: torch::autograd::grad() cannot reach the parameters of a checkpointed "
           "function",
           "call backward()");
    if (at::GradMode::is_enabled())
      fail(Code::kUnsupported, "checkpoint: create_graph through a checkpointed function",
           "call the function directly");
  }

  static void run_again(State& state, const std::vector<at::Tensor>& inputs,
                        const torch::autograd::variable_list& gradients) {
    std::vector<at::Tensor> outputs;
    at::AutoGradMode grad_mode(true);
    {
      struct Restore {
        Surroundings now;
        ~Restore() { now.apply(); }
      } restore{Surroundings(inputs, state.options.preserve_rng_state)};
      state.surroundings.apply();
      outputs = state.body(inputs, /*first=*/false);
    }
    if (outputs.size() != state.outputs)
      fail(Code::kInvalidArgument,
           fmt::format("checkpoint: the function returned {} tensors, and {} when called again",
                       state.outputs, outputs.size()));
    torch::autograd::variable_list from, given;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!gradients[i].defined() || !outputs[i].requires_grad()) continue;
      from.push_back(outputs[i]);
      given.push_back(gradients[i]);
    }
    if (!from.empty()) torch::autograd::backward(from, given);
  }
};

}  // namespace

std::vector<at::Tensor> run_checkpoint(CheckpointBody body, std::vector<at::Tensor> inputs,
                                       const CheckpointOptions& options) {
  if (!at::GradMode::is_enabled()) return body(inputs, /*first=*/true);
  const auto state = c10::make_intrusive<State>(std::move(body), options, inputs);
  const at::Tensor anchor = at::empty({0}).set_requires_grad(true);
  return Checkpoint::apply(at::TensorList(inputs), anchor, state);
}

at::Tensor checkpoint_placeholder() { return at::empty({0}); }

}  // namespace tessera::fsdp::detail
