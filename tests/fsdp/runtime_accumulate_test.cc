// Gradients that add up over several backwards: whatever is cleared in between, on whatever groups,
// and whether the sum before is still being reduced.
#include <fmt/format.h>

#include "fsdp_core/runtime/root.h"
#include "fsdp_core/stream/stream.h"
#include "tests/fsdp/beside_plain.h"
#include "tests/fsdp/full_gradients.h"
#include "tests/fsdp/strategies.h"
#include "tests/fsdp/torch_and_catch.h"

namespace runtime_accumulate_test {

using namespace tessera::fsdp;
using namespace tessera::fsdp::test;

namespace {}  // namespace

TEST_CASE("gradients cleared of some parameters leave those of the others",
          "[runtime][gradients]") {
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  const bool zeroed = GENERATE(false, true);
  run_threads(2, [&](World& world) {
    auto [options, net, plain, data] = BesidePlain(world, {.layout = layout});
    const auto clear = [&](Net& n) {
      int at = 0;
      for (auto& param : n->named_parameters()) {
        if (at++ % 3 != 1) continue;
        if (zeroed)
          param.value().mutable_grad().zero_();
        else
          param.value().mutable_grad().reset();
      }
    };
    for (int micro = 0; micro < 3; ++micro) {
      backward(net, data, micro);
      backward(plain, data, micro);
      if (micro < 2) {
        clear(net);
        clear(plain);
      }
    }
    check_full_gradients(net, plain);
  });
}

TEST_CASE("micro-batches add up to the large batch", "[runtime][gradients]") {
  run_threads(2, [](World& world) {
    auto [options, net, plain, rows] = BesidePlain(world);
    const Data data = make_data(36);
    for (int micro = 0; micro < 3; ++micro) {
      const Data mine = part_of(part_of(data, micro, 3), world.rank(), world.size());
      (torch::mse_loss(net->forward(mine.x), mine.y) / 3).backward();
    }
    torch::mse_loss(plain->forward(data.x), data.y).backward();
    check_full_gradients(net, plain);
  });
}

TEST_CASE("without synchronisation neither shards nor replicas are reduced - then both once",
          "[runtime][gradients][hybrid]") {
  const auto strategy = GENERATE(from_range(hybrid_strategies()));
  run_threads(4, [&](World& world) {
    auto [options, net, plain, data] = BesidePlain(
        world, {.mesh = DeviceMesh(world, {2, 2}, {"replicate", "shard"}), .strategy = strategy},
        2);
    const auto shards = options.mesh->group(1), replicas = options.mesh->group(0);
    backward(net, data);
    for (auto& param : net->parameters()) param.mutable_grad().reset();
    for (int micro = 0; micro < 3; ++micro) {
      std::optional<NoSync> no_sync;
      if (micro < 2) no_sync.emplace(net);
      shards->reset_counts();
      replicas->reset_counts();
      backward(net, data, micro);
      backward(plain, data, micro);
      const std::int64_t want = micro < 2 ? 0 : 3;
      RANK_CHECK(shards->counts().reduce_scatters == want);
      RANK_CHECK(replicas->counts().all_reduces == want);
    }
    check_full_gradients(net, plain);
  });
}

TEST_CASE("a second backward leaves alone what is still being reduced", "[runtime][gradients]") {
  const auto strategy = GENERATE(ShardingStrategy::kFullShard, ShardingStrategy::kNoShard,
                                 ShardingStrategy::kHybridShard);
  const std::uint64_t seed = GENERATE(1, 2, 3);
  CAPTURE(strategy_name(strategy), seed);
  run_threads(4, [&](World& world) {
    tessera::fsdp::detail::Root::use_streams(
        simulated_streams(100 * seed + static_cast<std::uint64_t>(world.rank()), 2000));
    const DeviceMesh mesh = strategy == ShardingStrategy::kHybridShard
                                ? DeviceMesh(world, {2, 2}, {"replicate", "shard"})
                                : world.mesh();
    auto [options, net, plain, data] = BesidePlain(world, {.mesh = mesh, .strategy = strategy}, 2);
    for (int micro = 0; micro < 3; ++micro) {
      backward(net, data, micro);
      backward(plain, data, micro);
    }
    check_full_gradients(net, plain);
    tessera::fsdp::detail::Root::use_streams(nullptr);
  });
}

TEST_CASE("a unit gathered again between its parameters' gradients sees the next step's values",
          "[runtime][gradients]") {
  // One parameter at the beginning and one at the end of what runs in between: the unit is entered,
  // left, gathered again for its second call, and complete only after both.
  struct EndsImpl : torch::nn::Module {
    torch::Tensor in, out;
    EndsImpl() {
      in = register_parameter("in", torch::full({5}, 0.5));
      out = register_parameter("out", torch::full({5}, 2.0));
    }
    torch::Tensor forward(torch::Tensor x, bool last) { return x * (last ? out : in); }
  };
  struct LoopImpl : torch::nn::Module {
    Holder<EndsImpl> ends{nullptr};
    Block middle{nullptr};
    LoopImpl() {
      ends = register_module("ends", Holder<EndsImpl>());
      middle = register_module("middle", Block(5, 7));
    }
    torch::Tensor forward(torch::Tensor x) {
      return ends->forward(middle->forward(ends->forward(x, false)), true);
    }
  };
  const auto strategy = GENERATE(ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp);
  const bool input_grad = GENERATE(false, true);
  run_threads(2, [&](World& world) {
    const auto make = [] {
      const std::lock_guard lock(generator_mutex());
      torch::manual_seed(9);
      return Holder<LoopImpl>();
    };
    Holder<LoopImpl> net = make(), plain = make();
    Options options;
    options.mesh = world.mesh();
    options.strategy = strategy;
    fully_shard(net->ends, options);
    fully_shard(net->middle, options);
    fully_shard(net, options);
    torch::optim::SGD ours(net->parameters(), 0.1), theirs(plain->parameters(), 0.1);
    for (int step = 0; step < 4; ++step) {
      const torch::Tensor x = torch::ones({3, 5}).set_requires_grad(input_grad);
      ours.zero_grad();
      theirs.zero_grad();
      const torch::Tensor a = net->forward(x), b = plain->forward(x);
      RANK_CHECK(torch::allclose(a, b, 1e-5, 1e-6), fmt::format("step {}", step));
      a.square().mean().backward();
      b.square().mean().backward();
      ours.step();
      theirs.step();
    }
  });
}

}  // namespace runtime_accumulate_test
