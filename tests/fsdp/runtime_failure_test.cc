// A step that fails: everything is sharded again, peers are told, and after reset the next step is
// a clean one.
#include <fmt/format.h>

#include <chrono>
#include <limits>

#include "tests/fsdp/full_gradients.h"
#include "tests/fsdp/models.h"
#include "tests/fsdp/torch_and_catch.h"

namespace runtime_failure_test {

using namespace tessera::fsdp;
using namespace tessera::fsdp::test;

namespace {

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::vector<torch::Tensor> shards_of(Net& net) {
  std::vector<torch::Tensor> out;
  for (const auto& param : net->parameters()) out.push_back(param.detach().clone());
  return out;
}

/// Where rank 1 throws.
enum class Place { kForward, kBackward, kOutputHook };

}  // namespace

TEST_CASE("alone - a forward that throws leaves everything sharded and the next step right",
          "[runtime][failure]") {
  Net net = make_net(), plain = make_net();
  shard(net, {});
  const Data data = make_data();
  CHECK_THROWS(net->forward(torch::ones({2, 3})));
  for (const auto& [name, state] : unit_states(net)) CHECK(state == "(Sharded, Idle, None)");
  torch::mse_loss(net->forward(data.x), data.y).backward();
  torch::mse_loss(plain->forward(data.x), data.y).backward();
  check_full_gradients(net, plain);
}

TEST_CASE("a rank that throws makes every rank raise - reset starts a clean step",
          "[runtime][failure]") {
  const Place place = GENERATE(Place::kForward, Place::kBackward, Place::kOutputHook);
  CAPTURE(static_cast<int>(place));
  run_threads(3, [&](World& world) {
    Net net = make_net();
    Options options;
    options.mesh = world.mesh();
    shard(net, options);
    const Data data = make_data();
    const std::vector<torch::Tensor> before = shards_of(net);
    const auto start = std::chrono::steady_clock::now();
    const bool thrower = world.rank() == 1;
    const std::string message = message_of([&] {
      if (thrower && place == Place::kForward) net->forward(torch::ones({2, 3}));
      auto x = data.x;
      if (thrower && place == Place::kBackward) {
        x = x.clone().set_requires_grad(true) * 1.0;
        x.register_hook(
            [](const torch::Tensor&) { throw std::runtime_error("thrown in backward"); });
      }
      auto y = net->forward(x);
      if (thrower && place == Place::kOutputHook)
        y.register_hook([](const torch::Tensor&) { throw std::runtime_error("thrown in a hook"); });
      torch::mse_loss(y, data.y).backward();
      // A failure after this rank's last collective is met in the next step.
      torch::mse_loss(net->forward(data.x), data.y).backward();
    });
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    RANK_CHECK(!message.empty());
    RANK_CHECK(seconds < 10, fmt::format("{} s", seconds));
    RANK_CHECK(has(message_of([&] { net->forward(data.x); }), "reset"));

    World(world).reset();
    reset(net);
    const std::vector<torch::Tensor> after = shards_of(net);
    for (std::size_t i = 0; i < before.size(); ++i) RANK_CHECK(torch::equal(before[i], after[i]));
    for (const auto& param : net->parameters()) RANK_CHECK(!param.grad().defined());
    Net clean = make_net();
    torch::mse_loss(net->forward(data.x), data.y).backward();
    torch::mse_loss(clean->forward(data.x), data.y).backward();
    check_full_gradients(net, clean);
  });
}

TEST_CASE("different wrapping on one rank is an error - not a hang", "[runtime][failure]") {
  CHECK_THROWS(run_threads(2, [&](World& world) {
    Net net = make_net();
    Options options;
    options.mesh = world.mesh();
    if (world.rank() == 0)
      shard(net, options);
    else
      fully_shard(net, options);
    net->forward(make_data().x).sum().backward();
  }));
}

TEST_CASE("the origin of a NaN is named", "[runtime][failure]") {
  run_threads(2, [](World& world) {
    Net net = make_net();
    Options options;
    options.mesh = world.mesh();
    options.check_nan = true;
    shard(net, options);
    const Data data = make_data();
    torch::mse_loss(net->forward(data.x), data.y).backward();
    const std::string message = message_of([&] {
      auto y = net->forward(data.x);
      if (world.rank() == 1) y = y * torch::full_like(y, std::numeric_limits<float>::quiet_NaN());
      y.sum().backward();
      net->forward(data.x);
    });
    if (world.rank() == 1) {
      RANK_CHECK(has(message, "blocks2."), message);
      RANK_CHECK(has(message, "rank 1"), message);
      RANK_CHECK(has(message, "element 0"), message);
    }
    RANK_CHECK(!message.empty());
  });
}

TEST_CASE("a model built on the meta device is initialised unit by unit", "[runtime][meta]") {
  run_threads(3, [](World& world) {
    Net net = [] {
      MetaInit meta;
      return Net(3, 19, 33, 5);
    }();
    Options options;
    options.mesh = world.mesh();
    RANK_CHECK(has(message_of([&] { shard(net, options); }), "meta"));
    options.param_init_fn = [](torch::nn::Module& module) {
      for (auto& param : module.named_parameters(false))
        init::normal_(init::Piece::whole(param.value()), init::Seed::of(1, param.key()));
    };
    shard(net, options);
    SummonFullParams full(net);
    for (const auto& param : net->named_parameters()) {
      const std::string last = param.key().substr(param.key().rfind('.') + 1);
      torch::Tensor want = torch::empty(param.value().sizes());
      init::normal_(init::Piece::whole(want), init::Seed::of(1, last));
      RANK_CHECK(torch::equal(param.value(), want), param.key());
    }
  });
}

TEST_CASE("a rank that throws in a collective call of the library makes every rank raise",
          "[runtime][failure]") {
  const char* const call = GENERATE("summon", "summon with gradients", "clip_grad_norm_");
  const char* const backend = GENERATE("threads", "gloo");
  CAPTURE(call, backend);
  WorldOptions world_options;
  world_options.backend = backend;
  world_options.timeout = std::chrono::seconds(20);
  run_threads(
      3,
      [&](World& world) {
        Net net = make_net(2);
        Options options;
        options.mesh = world.mesh();
        shard(net, options);
        const Data data = make_data();
        torch::mse_loss(net->forward(data.x), data.y).backward();
        const bool clips = std::string(call) == "clip_grad_norm_";
        const bool with_grads = std::string(call) == "summon with gradients";
        // As memory that runs out between two of the call's collectives.
        int seen = 0;
        if (world.rank() == 1)
          world.communicator()->observe([&](const CommRecord& record) {
            if (record.phase != (clips ? CommPhase::kOptimizer : CommPhase::kSummon)) return;
            if (++seen == (clips ? 1 : with_grads ? 5 : 2)) throw std::bad_alloc();
          });
        const auto start = std::chrono::steady_clock::now();
        const std::string message = message_of([&] {
          if (clips) {
            clip_grad_norm_(net, 1.0);
          } else {
            SummonOptions summon;
            summon.with_grads = with_grads;
            SummonFullParams full(net, summon);
            full.finish();
          }
        });
        const double seconds =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        world.communicator()->observe({});
        RANK_CHECK(seconds < 10, fmt::format("{} s", seconds));
        RANK_CHECK(has(message, world.rank() == 1 ? "bad_alloc" : "rank 1 failed"), message);
        RANK_CHECK(world.rank() == 1 || has(message, clips ? "clip_grad_norm_" : "summon"),
                   message);
        RANK_CHECK(has(message_of([&] { net->forward(data.x); }), "reset"));
        World(world).reset();
        reset(net);
        Net clean = make_net(2);
        torch::mse_loss(net->forward(data.x), data.y).backward();
        torch::mse_loss(clean->forward(data.x), data.y).backward();
        check_full_gradients(net, clean);
      },
      world_options);
}

}  // namespace runtime_failure_test
