// Options that change one thing each: what the sum of the gradients is divided by, whether the
// outermost unit's inputs are cast, and when parameters are freed after all.
#include <fmt/format.h>

#include "fsdp_core/params/recycler.h"
#include "tests/fsdp/beside_plain.h"
#include "tests/fsdp/full_gradients.h"
#include "tests/fsdp/torch_and_catch.h"

namespace runtime_options_test {

using namespace tessera::fsdp;
using namespace tessera::fsdp::test;

namespace {

struct SeesImpl : torch::nn::Module {
  torch::nn::Linear inner{nullptr};
  torch::Dtype seen = torch::kFloat;
  SeesImpl() : inner(register_module("inner", torch::nn::Linear(4, 4))) {}
  torch::Tensor forward(torch::Tensor x) {
    seen = x.scalar_type();
    return inner->forward(x.to(inner->weight.scalar_type()));
  }
};
FSDP_MODULE(Sees);

/// All-gathers of a forward and of a backward over `comm`.
std::pair<std::int64_t, std::int64_t> gathers(Net& net, const Data& data, Communicator& comm) {
  comm.reset_counts();
  const torch::Tensor loss = torch::mse_loss(net->forward(data.x), data.y);
  const std::int64_t forward = comm.counts().all_gathers;
  loss.backward();
  return {forward, comm.counts().all_gathers - forward};
}

constexpr std::int64_t kUnits = 4;  // three blocks and the root

}  // namespace

TEST_CASE("gradients are divided by the factor that is asked for", "[runtime][options]") {
  const auto [strategy, size] =
      GENERATE(table<ShardingStrategy, int>({{ShardingStrategy::kFullShard, 3},
                                             {ShardingStrategy::kNoShard, 2},
                                             {ShardingStrategy::kHybridShard, 4}}));
  const auto reduce = GENERATE(torch::kFloat, torch::kHalf);
  const double factor = GENERATE(1.0, 8.0, 3.0);
  CAPTURE(strategy_name(strategy), factor);
  run_threads(size, [&, strategy = strategy](World& world) {
    Options options;
    options.strategy = strategy;
    options.gradient_divide_factor = factor;
    options.mixed_precision.reduce_dtype = reduce;
    if (strategy == ShardingStrategy::kHybridShard)
      options.mesh = DeviceMesh(world, {2, 2}, {"replicate", "shard"});
    BesidePlain both(world, options);
    // Every rank has the same data: the sum is as often the plain gradient as there are ranks.
    backward(both.net, both.data);
    backward(both.plain, both.data);
    SummonOptions with_grads;
    with_grads.with_grads = true;
    const SummonFullParams full(both.net, with_grads);
    const auto theirs = both.plain->named_parameters();
    for (const auto& param : both.net->named_parameters()) {
      const torch::Tensor want = theirs[param.key()].grad() * (world.size() / factor);
      const double loose = reduce == torch::kHalf ? 5e-3 : 1e-5;
      RANK_CHECK(torch::allclose(param.value().grad(), want, loose, loose), param.key());
    }
  });
}

TEST_CASE("the outermost unit's inputs are cast unless that is off", "[runtime][options]") {
  const bool cast = GENERATE(true, false);
  run_threads(2, [&](World& world) {
    Options options;
    options.mesh = world.mesh();
    options.mixed_precision.param_dtype = torch::kBFloat16;
    options.mixed_precision.cast_root_forward_inputs = cast;
    Sees module;
    fully_shard(module, options);
    const torch::Tensor out = module->forward(torch::ones({2, 4}));
    RANK_CHECK(module->seen == (cast ? torch::kBFloat16 : torch::kFloat));
    RANK_CHECK(out.scalar_type() == torch::kBFloat16);
  });
}

TEST_CASE("after forward the outermost unit's parameters lie in memory or are freed",
          "[runtime][options]") {
  const auto freed = GENERATE(false, true);
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  const World world = fake_world(1, 4);
  Options options;
  options.mesh = world.mesh();
  options.layout = layout;
  if (freed) options.reshard_after_forward = true;
  Net net = make_net(2, 16, 32, 4);
  shard(net, options);
  const Data data = make_data(4, 16, 4);
  for (int step = 0; step < 3; ++step) {
    const std::size_t before = recycler_counts().in_use;
    const torch::Tensor loss = torch::mse_loss(net->forward(data.x), data.y);
    const std::size_t root = 4 * (16 * 16 + 16 + 16 * 4 + 4);
    CHECK(recycler_counts().in_use - before == (freed ? 0 : root));
    loss.backward();
    for (torch::Tensor& param : net->parameters()) param.mutable_grad().reset();
  }
}

TEST_CASE("parameters are kept and freed as the flags say - from the next step on",
          "[runtime][options]") {
  run_threads(2, [](World& world) {
    Options options;
    options.reshard_after_forward = true;
    BesidePlain both(world, options);
    Communicator& comm = *world.communicator();
    const auto step = [&] { return gathers(both.net, both.data, comm); };
    step();
    RANK_CHECK(step() == std::pair(kUnits, kUnits));
    set_reshard_after_forward(both.net, false);
    RANK_CHECK(step() == std::pair(kUnits, std::int64_t{0}), "kept after forward");
    // Kept after backward too: with the same values nothing is gathered again.
    set_reshard_after_backward(both.net, false);
    step();
    RANK_CHECK(step() == std::pair(std::int64_t{0}, std::int64_t{0}), "kept after backward");
    set_reshard_after_forward(both.net, true);
    set_reshard_after_backward(both.net, true);
    step();
    RANK_CHECK(step() == std::pair(kUnits, kUnits), "freed again");
    // Gradients add up over all of them.
    for (int i = 0; i < 7; ++i) backward(both.plain, both.data);
    check_full_gradients(both.net, both.plain);
  });
}

}  // namespace runtime_options_test
