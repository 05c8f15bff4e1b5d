// Forwards without gradients, under NoGradGuard and under c10::InferenceMode: they free what they
// gathered, keep nothing, and the training around them goes on as if they had not been.
#include <fmt/format.h>

#include <cstdlib>

#include "fsdp_core/params/recycler.h"
#include "fsdp_core/runtime/unit_groups.h"
#include "tests/fsdp/models.h"
#include "tests/fsdp/strategies.h"
#include "tests/fsdp/torch_and_catch.h"

namespace runtime_no_grad_test {

using namespace tessera::fsdp;
using namespace tessera::fsdp::test;

namespace {

enum class Without { kNoGrad, kInference };

torch::Tensor evaluate(Without how, const std::function<torch::Tensor()>& forward) {
  if (how == Without::kNoGrad) {
    const torch::NoGradGuard no_grad;
    return forward();
  }
  const c10::InferenceMode inference;
  return forward();
}

void train(Net& net, torch::optim::Optimizer& optimizer, const Data& data) {
  torch::mse_loss(net->forward(data.x), data.y).backward();
  optimizer.step();
  optimizer.zero_grad();
}

/// A buffer that training writes in place, and what each forward finds gathered.
struct MeterImpl : torch::nn::Module {
  torch::nn::Linear linear{nullptr};
  torch::Tensor mean;
  std::vector<std::size_t>* seen;
  explicit MeterImpl(std::vector<std::size_t>* seen_) : seen(seen_) {
    linear = register_module("linear", torch::nn::Linear(32, 32));
    mean = register_buffer("mean", torch::zeros({32}));
  }
  torch::Tensor forward(torch::Tensor x) {
    if (seen) seen->push_back(recycler_counts().in_use);
    x = linear->forward(x);
    if (is_training()) {
      const torch::NoGradGuard no_grad;
      mean.mul_(0.5).add_(x.detach().mean(0));
    }
    return x;
  }
};
FSDP_MODULE(Meter);

struct MetersImpl : torch::nn::Module {
  std::vector<Meter> meters;
  explicit MetersImpl(std::vector<std::size_t>* seen) {
    for (int i = 0; i < 4; ++i)
      meters.push_back(register_module(fmt::format("m{}", i), Meter(seen)));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (Meter& meter : meters) x = meter->forward(x);
    return x;
  }
};
FSDP_MODULE(Meters);

Meters make_meters(std::vector<std::size_t>* seen = nullptr) {
  const std::lock_guard lock(generator_mutex());
  torch::manual_seed(5);
  return Meters(seen);
}

void shard_meters(Meters& net, const Options& options) {
  for (Meter& meter : net->meters) fully_shard(meter, options);
  fully_shard(net, options);
}

}  // namespace

TEST_CASE("evaluations between training steps free what they gather and change no bit",
          "[runtime][no-grad]") {
  const Without how = GENERATE(Without::kNoGrad, Without::kInference);
  const auto strategy = GENERATE(from_range(all_strategies()));
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  const bool low = GENERATE(false, true);
  CAPTURE(how == Without::kInference, strategy_name(strategy), layout == MemoryLayout::kFlat, low);
  const Data data = make_data();
  run_threads(4, [&](World& world) {
    Options options;
    options.strategy = strategy;
    options.mesh = strategy_of(strategy).hybrid()
                       ? DeviceMesh(world, {2, 2}, {"replicate", "shard"})
                       : world.mesh();
    options.layout = layout;
    options.forward_prefetch = low;
    if (low) options.mixed_precision.param_dtype = torch::kBFloat16;
    Net net = make_net(2), twin = make_net(2);  // the twin never evaluates
    shard(net, options);
    shard(twin, options);
    torch::optim::Adam optimizer(net->parameters(), 1e-2), other(twin->parameters(), 1e-2);
    const Data mine = part_of(data, world.rank(), world.size());
    Communicator& comm = *world.communicator();
    const auto in_use = [&] {
      comm.barrier({});  // nobody is inside a step
      const std::size_t bytes = recycler_counts().in_use;
      comm.barrier({});
      return bytes;
    };
    for (int step = 0; step < 3; ++step) {
      const std::size_t before = in_use();
      for (int i = 0; i < step + 1; ++i) {  // the very first forward is an evaluation
        const torch::Tensor out = evaluate(how, [&] { return net->forward(mine.x); });
        RANK_CHECK(!out.requires_grad());
        for (const auto& [name, state] : unit_states(net))
          RANK_CHECK(state == "(Sharded, Idle, None)", name + state);
        RANK_CHECK(in_use() == before, fmt::format("step {}, evaluation {}", step, i));
      }
      train(net, optimizer, mine);
      train(twin, other, mine);
    }
    const auto a = net->parameters(), b = twin->parameters();
    for (std::size_t i = 0; i < a.size(); ++i) RANK_CHECK(torch::equal(a[i], b[i]));
  });
}

TEST_CASE("an evaluation between a forward and its backward changes no gradient",
          "[runtime][no-grad]") {
  const Without how = GENERATE(Without::kNoGrad, Without::kInference);
  const auto strategy = GENERATE(ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp);
  const Data data = make_data();
  run_threads(2, [&](World& world) {
    Options options;
    options.mesh = world.mesh();
    options.strategy = strategy;
    Net net = make_net(2), twin = make_net(2);
    shard(net, options);
    shard(twin, options);
    const torch::Tensor loss = torch::mse_loss(net->forward(data.x), data.y);
    evaluate(how, [&] { return net->forward(data.x); });
    for (const auto& [name, state] : unit_states(net))
      RANK_CHECK(state == "(Sharded, Idle, None)", name + state);
    loss.backward();
    torch::mse_loss(twin->forward(data.x), data.y).backward();
    const auto a = net->parameters(), b = twin->parameters();
    for (std::size_t i = 0; i < a.size(); ++i) RANK_CHECK(torch::equal(a[i].grad(), b[i].grad()));
  });
}

TEST_CASE("an evaluation holds one unit at a time whatever a training forward keeps",
          "[runtime][no-grad]") {
  const Without how = GENERATE(Without::kNoGrad, Without::kInference);
  const auto strategy = GENERATE(ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp);
  const World world = fake_world(1, 4);
  Options options;
  options.mesh = world.mesh();
  options.strategy = strategy;
  std::vector<std::size_t> seen;
  Meters net = make_meters(&seen);
  shard_meters(net, options);
  const std::size_t unit = 4 * (32 * 32 + 32);
  for (int i = 0; i < 2; ++i) {
    const std::size_t before = recycler_counts().in_use;
    evaluate(how, [&] { return net->forward(torch::ones({2, 32})); });
    CHECK(seen == std::vector<std::size_t>(4, before + unit));
    CHECK(recycler_counts().in_use == before);
    seen.clear();
    net->forward(torch::ones({2, 32})).sum().backward();
    const bool kept = strategy == ShardingStrategy::kShardGradOp;
    for (std::size_t u = 0; u < 4; ++u) CHECK(seen[u] == before + unit * (kept ? u + 1 : 1));
    seen.clear();
  }
}

TEST_CASE("buffers and full precision that an inference made first can be trained",
          "[runtime][no-grad][precision]") {
  const Without how = GENERATE(Without::kNoGrad, Without::kInference);
  setenv("FSDP_USE_FULL_PREC_IN_EVAL", "1", 1);
  run_threads(2, [&](World& world) {
    Options options;
    options.mesh = world.mesh();
    options.mixed_precision.param_dtype = torch::kBFloat16;
    options.mixed_precision.buffer_dtype = torch::kBFloat16;
    Meters net = make_meters(), twin = make_meters();
    shard_meters(net, options);
    shard_meters(twin, options);
    const torch::Tensor x = torch::ones({2, 32}) * (world.rank() + 1);
    for (int step = 0; step < 2; ++step) {
      net->eval();
      const torch::Tensor out = evaluate(how, [&] { return net->forward(x); });
      RANK_CHECK(out.scalar_type() == torch::kFloat);
      net->train();
      // Lowered inside an inference, and written in place outside of it.
      evaluate(how, [&] { return net->forward(x); });
      net->forward(x).sum().backward();
      for (int i = 0; i < 2; ++i) twin->forward(x).sum().backward();
      RANK_CHECK(torch::equal(net->meters[0]->mean, twin->meters[0]->mean));
    }
    // What the evaluation gathered into first is the memory of a summon.
    const SummonFullParams full(net);
    const torch::NoGradGuard no_grad;
    for (torch::Tensor& param : net->parameters()) param.mul_(2);
  });
  unsetenv("FSDP_USE_FULL_PREC_IN_EVAL");
}

TEST_CASE("a model may be sharded inside an inference and trained outside of it",
          "[runtime][no-grad]") {
  run_threads(2, [](World& world) {
    Options options;
    options.mesh = world.mesh();
    options.layout = MemoryLayout::kPerParameter;
    Net net = make_net(1), plain = make_net(1);
    {
      const c10::InferenceMode inference;
      shard(net, options);
      net->forward(torch::ones({2, 19}));
      const SummonFullParams full(net);
      RANK_CHECK(torch::equal(net->head->weight, plain->head->weight));
    }
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    train(net, optimizer, make_data());
    Net made = nullptr;
    {
      const c10::InferenceMode inference;
      made = make_net(1);
    }
    const std::string message = message_of([&] { fully_shard(made, options); });
    RANK_CHECK(message.find("made under c10::InferenceMode") != std::string::npos, message);
  });
}

}  // namespace runtime_no_grad_test
