// Shards and gradients in the host's memory: whatever accumulates, in whichever way, is all there,
// and communication hooks get what they get without. Every combination runs: a count says so.
#include <fmt/format.h>

#include <atomic>

#include "fsdp_core/runtime/unit_groups.h"
#include "tests/fsdp/beside_plain.h"
#include "tests/fsdp/full_gradients.h"
#include "tests/fsdp/torch_and_catch.h"

namespace runtime_offload_test {

using namespace tessera::fsdp;
using namespace tessera::fsdp::test;

namespace {

/// Which microbatches of a step are reduced.
struct Accumulating {
  const char* name;
  std::vector<bool> reduced;
};

DeviceMesh offload_mesh(World& world, ShardingStrategy strategy) {
  return strategy_of(strategy).hybrid()
             ? DeviceMesh(world, {2, world.size() / 2}, {"replicate", "shard"})
             : world.mesh();
}

}  // namespace

TEST_CASE("offloaded gradients accumulate as on the plain module in every way",
          "[runtime][offload]") {
  const std::vector<Accumulating> ways = {{"at once", {true}},
                                          {"every one reduced", {true, true, true}},
                                          {"the last reduced", {false, false, true}},
                                          {"in turn", {false, true, false, true}},
                                          {"reduced, then held", {true, false, true}}};
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  std::atomic<int> ran = 0;
  for (int s = 0; s < 5; ++s)
    for (const Accumulating& way : ways) {
      const auto strategy = static_cast<ShardingStrategy>(s);
      CAPTURE(strategy_name(strategy), way.name, layout == MemoryLayout::kFlat);
      CHECK_NOTHROW(run_threads(4, [&](World& world) {
        Options given;
        given.mesh = offload_mesh(world, strategy);
        given.strategy = strategy;
        given.layout = layout;
        given.cpu_offload.offload_params = true;
        auto [options, net, plain, data] = BesidePlain(world, given, 2);
        torch::optim::Adam ours(net->parameters(), 1e-2), theirs(plain->parameters(), 1e-2);
        for (int step = 0; step < 2; ++step) {
          ours.zero_grad();
          theirs.zero_grad();
          for (std::size_t micro = 0; micro < way.reduced.size(); ++micro) {
            std::optional<NoSync> no_sync;
            if (!way.reduced[micro]) no_sync.emplace(net);
            // Different rows on each rank: their mean is the plain module's over all of them.
            const Data mine = part_of(data, world.rank(), world.size());
            backward(net, mine, static_cast<int>(micro));
            backward(plain, data, static_cast<int>(micro));
          }
          for (const torch::Tensor& param : net->parameters())
            RANK_CHECK(param.is_cpu() && param.grad().defined() && param.grad().is_cpu());
          check_full_gradients(net, plain, fmt::format("step {}", step));
          ours.step();
          theirs.step();
        }
        if (world.rank() == 0) ++ran;
      }));
    }
  CHECK(ran == 5 * 5);
}

TEST_CASE("communication hooks get offloaded gradients as they get others",
          "[runtime][offload][commhook]") {
  const auto strategy = GENERATE(ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp,
                                 ShardingStrategy::kNoShard);
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  const bool hooked = GENERATE(false, true);
  CAPTURE(strategy_name(strategy), layout == MemoryLayout::kFlat, hooked);
  run_threads(3, [&](World& world) {
    Options given;
    given.strategy = strategy;
    given.layout = layout;
    given.cpu_offload.offload_params = true;
    auto [options, net, plain, data] = BesidePlain(world, given, 2);
    int calls = 0;
    if (hooked)
      register_comm_hook(net, [&, average = average_hook().function](GradientBucket& bucket) {
        ++calls;
        average(bucket);
      });
    for (int micro = 0; micro < 2; ++micro) {
      backward(net, part_of(data, world.rank(), world.size()), micro);
      backward(plain, data, micro);
    }
    RANK_CHECK(calls == (hooked ? 2 * 3 : 0));
    check_full_gradients(net, plain);
  });
}

}  // namespace runtime_offload_test
