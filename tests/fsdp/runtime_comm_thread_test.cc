// The communication thread: whatever the options, training with it is bit-equal to training without; a
// group's calls keep the order in which they were asked for, whoever asks; failures pass to the caller;
// and gathers really run beside compute.
#include <fmt/format.h>

#include <array>
#include <chrono>
#include <thread>

#include "fsdp_core/stream/stream.h"
#include "tests/fsdp/full_gradients.h"
#include "tests/fsdp/models.h"
#include "tests/fsdp/strategies.h"
#include "tests/fsdp/torch_and_catch.h"

namespace runtime_comm_thread_test {

using namespace tessera::fsdp;
using namespace tessera::fsdp::test;
using torch::Tensor;

namespace {

WorldOptions over(const char* backend) {
  WorldOptions options;
  options.backend = backend;
  options.timeout = std::chrono::seconds(20);
  return options;
}

struct Row {
  ShardingStrategy strategy;
  MemoryLayout layout;
  bool low, accumulates;
  int in_reduction;
};

Options options_of(World& world, const Row& row, bool with_thread) {
  Options options;
  options.strategy = row.strategy;
  options.layout = row.layout;
  options.mesh = strategy_of(row.strategy).hybrid()
                     ? DeviceMesh(world, {2, world.size() / 2}, {"replicate", "shard"})
                     : world.mesh();
  if (row.low) {
    options.mixed_precision.param_dtype = torch::kBFloat16;
    options.mixed_precision.reduce_dtype = torch::kFloat;
  }
  options.reduce_scatter_max_input_buffers = row.in_reduction;
  options.communication_thread = with_thread;
  return options;
}

std::vector<Tensor> train(World& world, const Row& row, bool with_thread) {
  Net net = make_net();
  shard(net, options_of(world, row, with_thread));
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  const Data data = part_of(make_data(), world.rank(), world.size());
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    for (int micro = 0; micro <= (row.accumulates ? 1 : 0); ++micro) {
      set_requires_gradient_sync(net, !row.accumulates || micro == 1);
      const Tensor loss =
          torch::mse_loss(net->forward(data.x * (micro + 1)).to(torch::kFloat), data.y);
      // A call of the program's own between a forward and its backward.
      Tensor mean = loss.detach().view({1}).clone();
      world.communicator()->all_reduce(mean, Reduce::kSum, {"", CommPhase::kOptimizer});
      loss.backward();
    }
    clip_grad_norm_(net, 1.0);
    optimizer.step();
    const torch::NoGradGuard evaluation;
    net->forward(data.x);
  }
  std::vector<Tensor> out;
  const SummonFullParams full(net);
  for (const Tensor& parameter : net->parameters()) out.push_back(parameter.detach().clone());
  return out;
}

/// Computes for 5 ms without a core.
struct SleeperImpl : torch::nn::Module {
  SleeperImpl() : linear(register_module("linear", torch::nn::Linear(4, 4))) {}
  Tensor forward(Tensor x) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return linear->forward(x);
  }
  torch::nn::Linear linear;
};
FSDP_MODULE(Sleeper);

struct SleepersImpl : torch::nn::Module {
  explicit SleepersImpl(int count) {
    for (int i = 0; i < count; ++i)
      layers.push_back(register_module("layer" + std::to_string(i), Sleeper()));
  }
  Tensor forward(Tensor x) {
    for (Sleeper& layer : layers) x = layer->forward(x);
    return x;
  }
  std::vector<Sleeper> layers;
};
FSDP_MODULE(Sleepers);

/// A gather that takes a while longer.
GatherHook slow_gather(std::chrono::milliseconds by) {
  return {[by](GatherBucket& bucket) {
            std::this_thread::sleep_for(by);
            bucket.comm.all_gather_into(bucket.output, bucket.shard, bucket.tag);
          },
          "slow"};
}

}  // namespace

TEST_CASE("a communication thread changes no bit", "[runtime][comm_thread]") {
  const auto strategy = GENERATE(from_range(all_strategies()));
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  const bool low = GENERATE(false, true);
  const bool accumulates = GENERATE(false, true);
  const int in_reduction = GENERATE(1, 3);
  const char* backend = low ? "gloo" : "threads";
  CAPTURE(strategy_name(strategy), static_cast<int>(layout), low, accumulates, in_reduction);
  const Row row{strategy, layout, low, accumulates, in_reduction};
  run_threads(
      strategy_of(strategy).hybrid() ? 4 : 2,
      [&](World& world) {
        const auto without = train(world, row, false), with = train(world, row, true);
        for (std::size_t i = 0; i < with.size(); ++i)
          RANK_CHECK(torch::equal(with[i], without[i]), fmt::format("parameter {}", i));
      },
      over(backend));
}

TEST_CASE("roots of one rank keep one order on their communication thread",
          "[runtime][comm_thread]") {
  run_threads(2, [&](World& world) {
    Options options;
    options.mesh = world.mesh();
    options.communication_thread = true;
    Net first = make_net(), second = make_net(), plain = make_net();
    shard(first, options);
    shard(second, options);
    const Data data = make_data();
    for (int step = 0; step < 3; ++step) {
      const Tensor a = torch::mse_loss(first->forward(data.x), data.y);
      const Tensor b = torch::mse_loss(second->forward(data.x), data.y);
      a.backward();
      b.backward();
      torch::mse_loss(plain->forward(data.x), data.y).backward();
    }
    check_full_gradients(first, plain);
    check_full_gradients(second, plain);
  });
}

TEST_CASE("a failure beside compute reaches every rank, and reset goes on",
          "[runtime][comm_thread][failure]") {
  const char* backend = GENERATE("threads", "gloo");
  run_threads(
      2,
      [&](World& world) {
        Options options;
        options.mesh = world.mesh();
        options.communication_thread = true;
        Net net = make_net(), plain = make_net();
        shard(net, options);
        const Data data = make_data();
        torch::mse_loss(net->forward(data.x), data.y).backward();
        for (Tensor& parameter : net->parameters()) parameter.mutable_grad().reset();
        const Tensor x = data.x.clone().requires_grad_();
        const Tensor loss = torch::mse_loss(net->forward(x), data.y);
        if (world.rank() == 1)
          x.register_hook([](const Tensor&) -> Tensor { throw std::runtime_error("broke here"); });
        const std::string message = message_of([&] { loss.backward(); });
        RANK_CHECK(message.find(world.rank() == 1 ? "broke here" : "rank 1") != std::string::npos,
                   message);
        RANK_CHECK(message_of([&] { net->forward(data.x); }).find("an earlier step failed") !=
                   std::string::npos);
        world.reset();
        reset(net);
        const torch::NoGradGuard evaluation;
        RANK_CHECK(torch::allclose(net->forward(data.x), plain->forward(data.x)));
      },
      over(backend));
}

TEST_CASE("gathers run beside compute on a communication thread", "[runtime][comm_thread]") {
  // Both take 5 ms a unit: one after the other, or beside each other. The best of several, as the
  // machine may be busy.
  using Clock = std::chrono::steady_clock;
  std::array<double, 2> best{1e9, 1e9};
  run_threads(2, [&](World& world) {
    for (const bool with_thread : {false, true}) {
      Options options;
      options.mesh = world.mesh();
      options.communication_thread = with_thread;
      Sleepers net(12);
      for (Sleeper& layer : net->layers) fully_shard(layer, options);
      fully_shard(net, options);
      set_custom_all_gather(net, slow_gather(std::chrono::milliseconds(5)));
      const torch::NoGradGuard evaluation;
      for (int step = 0; step < 6; ++step) {
        world.communicator()->barrier({"", CommPhase::kSetup});
        const auto begin = Clock::now();
        net->forward(torch::ones({2, 4}));
        const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
        if (world.rank() == 0 && step > 0) best[with_thread] = std::min(best[with_thread], seconds);
      }
    }
  });
  CAPTURE(best[0], best[1]);
  CHECK(best[0] / best[1] >= 1.3);
}

}  // namespace runtime_comm_thread_test
