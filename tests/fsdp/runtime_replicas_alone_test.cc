// A hybrid mesh of which one dim has a single rank: replicas that shard nothing are data-parallel
// training, one replica is full sharding. Ranks have different rows, so that a reduction over the
// wrong ranks, or over none, gives other gradients.
#include <fmt/format.h>

#include "tests/fsdp/beside_plain.h"
#include "tests/fsdp/full_gradients.h"
#include "tests/fsdp/strategies.h"
#include "tests/fsdp/torch_and_catch.h"

namespace runtime_replicas_alone_test {

using namespace tessera::fsdp;
using namespace tessera::fsdp::test;

TEST_CASE("replicas of unsharded units average over the replicas, as data-parallel training does",
          "[runtime][hybrid]") {
  const auto strategy = GENERATE(from_range(hybrid_strategies()));
  const int replicas = GENERATE(2, 3, 4);
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  const auto reduce = GENERATE(torch::kFloat, torch::kHalf);
  const bool held = GENERATE(false, true);  // the first of two microbatches is not reduced
  CAPTURE(strategy_name(strategy), replicas, layout == MemoryLayout::kFlat, held);
  run_threads(replicas, [&](World& world) {
    Options given;
    given.mesh = DeviceMesh(world, {replicas, 1}, {"replicate", "shard"});
    given.strategy = strategy;
    given.layout = layout;
    if (reduce != torch::kFloat) given.mixed_precision.reduce_dtype = reduce;
    auto [options, net, plain, data] = BesidePlain(world, given, 2);
    const auto over_replicas = options.mesh->group(0), over_shards = options.mesh->group(1);
    for (int micro = 0; micro < 2; ++micro) {
      std::optional<NoSync> no_sync;
      if (held && micro == 0) no_sync.emplace(net);
      over_replicas->reset_counts();
      over_shards->reset_counts();
      backward(net, part_of(data, world.rank(), world.size()), micro);
      backward(plain, data, micro);
      const std::int64_t units = held && micro == 0 ? 0 : 3;
      RANK_CHECK(over_replicas->counts().all_reduces == units, std::to_string(micro));
      RANK_CHECK(over_shards->counts().wire_bytes == 0);
    }
    if (reduce == torch::kFloat) return check_full_gradients(net, plain);
    SummonOptions with_grads;
    with_grads.with_grads = true;
    const SummonFullParams full(net, with_grads);
    const auto theirs = plain->named_parameters();
    for (const auto& param : net->named_parameters())
      RANK_CHECK(torch::allclose(param.value().grad(), theirs[param.key()].grad(), 5e-3, 5e-3),
                 param.key());
  });
}

TEST_CASE("one replica of sharded units trains as full sharding, bit for bit",
          "[runtime][hybrid]") {
  const bool keeps = GENERATE(false, true);
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  run_threads(3, [&](World& world) {
    Options hybrid, full;
    hybrid.mesh = DeviceMesh(world, {1, 3}, {"replicate", "shard"});
    hybrid.strategy = keeps ? ShardingStrategy::kHybridShardZero2 : ShardingStrategy::kHybridShard;
    full.strategy = keeps ? ShardingStrategy::kShardGradOp : ShardingStrategy::kFullShard;
    hybrid.layout = full.layout = layout;
    BesidePlain one(world, hybrid), other(world, full);
    const Data mine = part_of(one.data, world.rank(), world.size());
    torch::optim::Adam a(one.net->parameters(), 1e-2), b(other.net->parameters(), 1e-2);
    for (int step = 0; step < 3; ++step) {
      backward(one.net, mine, step);
      backward(other.net, mine, step);
      a.step();
      b.step();
    }
    const auto x = one.net->parameters(), y = other.net->parameters();
    for (std::size_t p = 0; p < x.size(); ++p) RANK_CHECK(torch::equal(x[p], y[p]));
  });
}

}  // namespace runtime_replicas_alone_test
