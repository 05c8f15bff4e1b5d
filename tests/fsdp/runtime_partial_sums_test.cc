// Gradients that are reduced over the shards alone wait, added up, for a backward that reduces over
// the replicas too: the result is the plain module's accumulated gradient.
#include "fsdp_core/runtime/root.h"
#include "tests/fsdp/full_gradients.h"
#include "tests/fsdp/models.h"
#include "tests/fsdp/torch_and_catch.h"

namespace runtime_partial_sums_test {

using namespace tessera::fsdp;
using namespace tessera::fsdp::test;

namespace {

constexpr int kMicrobatches = 3;
constexpr int kUnits = 4;

Data microbatch(int which) {
  const Data all = make_data(kMicrobatches * 24);
  return {all.x.narrow(0, which * 24, 24), all.y.narrow(0, which * 24, 24)};
}

}  // namespace

TEST_CASE("sums over the shards wait for the reduction over the replicas",
          "[runtime][partial-sums]") {
  Net plain = make_net();
  for (int m = 0; m < kMicrobatches; ++m) {
    const Data data = microbatch(m);
    torch::mse_loss(plain->forward(data.x), data.y).backward();
  }
  const auto [strategy, world] =
      GENERATE(table<ShardingStrategy, int>({{ShardingStrategy::kHybridShard, 4},
                                             {ShardingStrategy::kHybridShardZero2, 4},
                                             {ShardingStrategy::kHybridShard, 6},
                                             {ShardingStrategy::kNoShard, 2}}));
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  const bool late = GENERATE(false, true), find_unused = GENERATE(false, true);
  CAPTURE(strategy_name(strategy), world, late);
  const ShardingStrategy wanted = strategy;
  run_threads(world, [&](World& w) {
    if (late)
      tessera::fsdp::detail::Root::use_streams(
          simulated_streams(40 + static_cast<std::uint64_t>(w.rank()), 800));
    Options options;
    options.strategy = wanted;
    options.layout = layout;
    options.find_unused_parameters = find_unused;
    options.mesh = wanted == ShardingStrategy::kNoShard
                       ? w.mesh()
                       : DeviceMesh(w, {2, w.size() / 2}, {"replicate", "shard"});
    Net net = make_net();
    shard(net, options);
    const auto replicas = options.mesh->group(0);
    for (int m = 0; m < kMicrobatches; ++m) {
      set_requires_all_reduce(net, m + 1 == kMicrobatches);
      const Data mine = part_of(microbatch(m), w.rank(), w.size());
      replicas->reset_counts();
      torch::mse_loss(net->forward(mine.x), mine.y).backward();
      const bool whole = m + 1 == kMicrobatches;
      if (!find_unused)
        RANK_CHECK(replicas->counts().all_reduces == (whole ? kUnits : 0), std::to_string(m));
      for (const torch::Tensor& parameter : net->parameters())
        RANK_CHECK(parameter.grad().defined() == whole, std::to_string(m));
    }
    check_full_gradients(net, plain, "after three microbatches");
    // The next step starts from nothing held.
    for (torch::Tensor& parameter : net->parameters()) parameter.mutable_grad().reset();
    const Data mine = part_of(microbatch(0), w.rank(), w.size());
    torch::mse_loss(net->forward(mine.x), mine.y).backward();
    Net again = make_net();
    const Data data = microbatch(0);
    torch::mse_loss(again->forward(data.x), data.y).backward();
    check_full_gradients(net, again, "in the next step");
    tessera::fsdp::detail::Root::use_streams(nullptr);
  });
}

}  // namespace runtime_partial_sums_test
