// A backward that fails outside of its units, in the loss or in a hook on the model's output or on
// the very tensor that it starts from, is a failed backward: peers, which wait for this rank in
// theirs, are told at once and not at the timeout.
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/fsdp/full_gradients.h"
#include "tests/fsdp/models.h"
#include "tests/fsdp/torch_and_catch.h"

namespace runtime_backward_begin_test {

using namespace tessera::fsdp;
using namespace tessera::fsdp::test;
using Clock = std::chrono::steady_clock;

namespace {

enum class Place {
  kHookInForward,
  kHookAfterForward,
  kInLoss,
  kOutputIsTheRoot,
  kOneOfTwoRoots,
  kHookOnTheRoot,
  kHookOnTheOnlyRoot,  // which the user's own operator made from the output
  kSecondBackward,
  kGradCall,
};
constexpr int kPlaces = 9;

[[noreturn]] void raise() { throw std::runtime_error("thrown on purpose"); }

struct Faulty : torch::autograd::Function<Faulty> {
  static torch::Tensor forward(torch::autograd::AutogradContext*, torch::Tensor x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list) {
    raise();
  }
};

/// A net whose forward may hook its own output.
struct HookedNetImpl : torch::nn::Module {
  Net net{nullptr};
  bool hooks = false;
  HookedNetImpl() { net = register_module("net", make_net(2, 5, 6, 3)); }
  torch::Tensor forward(torch::Tensor x) {
    torch::Tensor y = net->forward(x);
    if (hooks) y.register_hook([](const torch::Tensor&) { raise(); });
    return y;
  }
};
FSDP_MODULE(HookedNet);

HookedNet make_hooked(World& world) {
  HookedNet net;
  Options options;
  options.mesh = world.mesh();
  for (Block& block : net->net->blocks) fully_shard(block, options);
  fully_shard(net, options);
  return net;
}

/// One step, in which `place` throws where `faulty`.
void step(HookedNet& net, const Data& data, Place place, bool faulty) {
  net->hooks = faulty && (place == Place::kHookInForward || place == Place::kOutputIsTheRoot);
  torch::Tensor y = net->forward(data.x);
  if (place == Place::kOutputIsTheRoot) return y.backward(data.y);
  if (faulty && place != Place::kHookInForward) {
    if (place == Place::kHookAfterForward) y.register_hook([](const torch::Tensor&) { raise(); });
    if (place == Place::kInLoss) y = Faulty::apply(y);
  }
  if (place == Place::kHookOnTheOnlyRoot) y = torch::tanh(y);
  const torch::Tensor loss = place == Place::kHookOnTheOnlyRoot ? y : torch::mse_loss(y, data.y);
  if (place == Place::kSecondBackward) loss.backward({}, /*retain_graph=*/true);
  if (faulty && place >= Place::kHookOnTheRoot)
    loss.register_hook([](const torch::Tensor&) { raise(); });
  if (place == Place::kHookOnTheOnlyRoot) return loss.backward(data.y);
  if (place == Place::kGradCall) {
    torch::autograd::grad({loss}, {y}, {}, /*retain_graph=*/true);
    return loss.backward();
  }
  if (place != Place::kOneOfTwoRoots) return loss.backward();
  const torch::Tensor other = y.square().sum();
  if (faulty) other.register_hook([](const torch::Tensor&) { raise(); });
  torch::autograd::backward({loss, other}, {torch::ones_like(loss), torch::ones_like(other)});
}

}  // namespace

TEST_CASE("a backward that fails outside of its units is told to every rank at once",
          "[runtime][failure]") {
  const char* backend = GENERATE("threads", "gloo");
  const auto place = static_cast<Place>(GENERATE(range(0, kPlaces)));
  CAPTURE(backend, static_cast<int>(place));
  std::atomic<int> raised = 0;
  WorldOptions world_options;
  world_options.backend = backend;
  run_threads(
      3,
      [&](World& world) {
        HookedNet net = make_hooked(world);
        const Data data = make_data(4, 5, 3);
        const bool faulty = world.rank() == 1;
        for (int i = 0; i < 2; ++i) step(net, data, place, false);
        const auto start = Clock::now();
        const auto waited = [&] {
          return std::chrono::duration<double>(Clock::now() - start).count();
        };
        const std::string message = message_of([&] { step(net, data, place, faulty); });
        if (faulty) {
          RANK_CHECK(message.find("thrown on purpose") != std::string::npos, message);
          // Neither a collective nor a reset that could tell the others.
          while (raised < 2 && waited() < 10)
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        } else {
          RANK_CHECK(waited() < 2, fmt::format("{} s", waited()));
          RANK_CHECK(message.find("rank 1 failed") != std::string::npos, message);
          RANK_CHECK(message.find("backward") != std::string::npos, message);
          ++raised;
        }
        World(world).reset();
        reset(net);
        step(net, data, place, false);
      },
      world_options);
  CHECK(raised == 2);
}

TEST_CASE("what a backward throws outside of its units passes with its type and tells its cause",
          "[runtime][failure]") {
  struct Odd : std::runtime_error {
    explicit Odd(int value_) : std::runtime_error("odd"), value(value_) {}
    int value;
  };
  run_threads(2, [](World& world) {
    HookedNet net = make_hooked(world);
    const Data data = make_data(4, 5, 3);
    const torch::Tensor loss = torch::mse_loss(net->forward(data.x), data.y);
    if (world.rank() == 1) {
      loss.register_hook([](const torch::Tensor&) { throw Odd(7); });
      int seen = 0;
      try {
        loss.backward();
      } catch (const Odd& odd) {
        seen = odd.value;
      }
      RANK_CHECK(seen == 7);
      // This rank too goes on after a reset alone.
      RANK_CHECK(message_of([&] { net->forward(data.x); }).find("reset") != std::string::npos);
    } else {
      const std::string message = message_of([&] { loss.backward(); });
      RANK_CHECK(message.find("rank 1 failed") != std::string::npos, message);
      RANK_CHECK(message.find("outside of its units") != std::string::npos, message);
    }
    World(world).reset();
    reset(net);
    torch::mse_loss(net->forward(data.x), data.y).backward();
  });
}

TEST_CASE("alone - a backward that fails outside of its units leaves the next step right",
          "[runtime][failure]") {
  Net net = make_net(2), plain = make_net(2);
  Options options;
  options.strategy = ShardingStrategy::kShardGradOp;
  shard(net, options);
  const Data data = make_data();
  const torch::Tensor loss = torch::mse_loss(net->forward(data.x), data.y);
  const unsigned hook = loss.register_hook([](const torch::Tensor&) { raise(); });
  CHECK_THROWS_WITH(loss.backward(), "thrown on purpose");
  for (const auto& [name, state] : unit_states(net)) CHECK(state == "(Sharded, Idle, None)");
  loss.remove_hook(hook);
  loss.backward();  // the graph is whole: what it needs is gathered again
  torch::mse_loss(plain->forward(data.x), data.y).backward();
  check_full_gradients(net, plain);
}

TEST_CASE("a backward through a part of the graph that needs no unit leaves the step as it was",
          "[runtime]") {
  run_threads(2, [](World& world) {
    HookedNet net = make_hooked(world);
    const Data data = make_data(4, 5, 3);
    const torch::Tensor scale = torch::ones({1}).set_requires_grad(true);
    const auto run = [&](bool look_first) {
      for (auto& param : net->parameters()) param.mutable_grad().reset();
      const torch::Tensor loss = torch::mse_loss(net->forward(data.x) * scale, data.y);
      if (look_first) torch::autograd::grad({loss}, {scale}, {}, /*retain_graph=*/true);
      loss.backward();
      std::vector<torch::Tensor> out;
      for (const auto& param : net->parameters()) out.push_back(param.grad().clone());
      return out;
    };
    const auto plain = run(false), looked = run(true);
    for (std::size_t p = 0; p < plain.size(); ++p) RANK_CHECK(torch::equal(plain[p], looked[p]));
  });
}

}  // namespace runtime_backward_begin_test
