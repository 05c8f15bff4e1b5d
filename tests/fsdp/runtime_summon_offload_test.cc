// Full parameters in the host's memory: values, edits that are written back or dropped, gradients,
// and for rank 0 alone. On the unit's device nothing stays gathered meanwhile.
#include <fmt/format.h>

#include <set>

#include "fsdp_core/params/recycler.h"
#include "fsdp_core/runtime/unit_groups.h"
#include "tests/fsdp/models.h"
#include "tests/fsdp/torch_and_catch.h"

namespace runtime_summon_offload_test {

using namespace tessera::fsdp;
using namespace tessera::fsdp::test;

namespace {

struct Where {
  int size;
  ShardingStrategy strategy;
};

struct Both {
  Net net = make_net(2), plain = make_net(2);
  Data data = make_data();
  Both(World& world, const Where& where, MemoryLayout layout, bool low) {
    Options options;
    options.strategy = where.strategy;
    options.mesh = strategy_of(where.strategy).hybrid()
                       ? DeviceMesh(world, {2, 2}, {"replicate", "shard"})
                       : world.mesh();
    options.layout = layout;
    if (low) options.mixed_precision.param_dtype = torch::kBFloat16;
    shard(net, options);
  }
  static void backward(Net& each, const Data& on) {
    torch::mse_loss(each->forward(on.x).to(torch::kFloat), on.y).backward();
  }
};

Where any_place() {
  return GENERATE(Where{1, ShardingStrategy::kFullShard}, Where{3, ShardingStrategy::kFullShard},
                  Where{3, ShardingStrategy::kShardGradOp}, Where{2, ShardingStrategy::kNoShard},
                  Where{4, ShardingStrategy::kHybridShard});
}

/// The bytes in use by all ranks, none of which is inside a call.
std::size_t in_use(World& world) {
  world.communicator()->barrier({});
  const std::size_t bytes = recycler_counts().in_use;
  world.communicator()->barrier({});
  return bytes;
}

}  // namespace

TEST_CASE("full parameters on the host are the plain ones and edits are written back or dropped",
          "[runtime][summon]") {
  const Where where = any_place();
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  const bool low = GENERATE(false, true);
  CAPTURE(where.size, strategy_name(where.strategy), layout == MemoryLayout::kFlat, low);
  run_threads(where.size, [&](World& world) {
    Both both(world, where, layout, low);
    const auto theirs = both.plain->named_parameters();
    double factor = 1;
    for (const bool write_back : {true, false, true}) {
      SummonOptions options;
      options.offload_to_cpu = true;
      options.write_back = write_back;
      const std::size_t before = in_use(world);
      {
        SummonFullParams full(both.net, options);
        RANK_CHECK(in_use(world) == before, "something stays gathered");
        std::set<const void*> memory;
        for (auto& param : both.net->named_parameters()) {
          const torch::Tensor& value = param.value();
          RANK_CHECK(value.is_cpu() && value.scalar_type() == torch::kFloat);
          RANK_CHECK(torch::equal(value, theirs[param.key()] * factor), param.key());
          RANK_CHECK(memory.insert(value.storage().data()).second, "memory of its own");
          RANK_CHECK(!value.grad().defined());
          const torch::NoGradGuard no_grad;
          param.value().mul_(2);
        }
        RANK_CHECK(torch::equal(both.net->head->weight, theirs["head.weight"] * (2 * factor)));
        const std::string nested = message_of([&] { SummonFullParams again(both.net, options); });
        RANK_CHECK(nested.find("summon") != std::string::npos, nested);
        full.finish();
      }
      if (write_back) factor *= 2;
      RANK_CHECK(in_use(world) == before);
    }
    // And from there it trains.
    {
      const torch::NoGradGuard no_grad;
      for (torch::Tensor& param : both.plain->parameters()) param.mul_(factor);
    }
    const torch::Tensor out = both.net->forward(both.data.x),
                        want = both.plain->forward(both.data.x);
    if (!low) RANK_CHECK(torch::allclose(out, want, 1e-5, 1e-4));
    out.sum().backward();
    for (const torch::Tensor& param : both.net->parameters()) RANK_CHECK(param.grad().defined());
  });
}

TEST_CASE("full gradients come to the host with the parameters", "[runtime][summon]") {
  const Where where = any_place();
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  const bool rank0_only = GENERATE(false, true);
  const bool offload = GENERATE(false, true);
  CAPTURE(where.size, strategy_name(where.strategy), layout == MemoryLayout::kFlat, rank0_only);
  run_threads(where.size, [&](World& world) {
    Both both(world, where, layout, false);
    both.net->stem->weight.set_requires_grad(false);
    both.plain->stem->weight.set_requires_grad(false);
    Both::backward(both.net, both.data);
    Both::backward(both.plain, both.data);
    SummonOptions options;
    options.offload_to_cpu = offload;
    options.with_grads = true;
    options.rank0_only = rank0_only;
    options.write_back = !rank0_only;
    {
      const SummonFullParams full(both.net, options);
      if (rank0_only && world.rank() != 0) {
        const std::string message = message_of([&] { both.net->head->weight + 1; });
        if (where.strategy != ShardingStrategy::kNoShard)
          RANK_CHECK(message.find("head.weight") != std::string::npos, message);
      } else {
        const auto theirs = both.plain->named_parameters();
        for (const auto& param : both.net->named_parameters()) {
          RANK_CHECK(torch::equal(param.value(), theirs[param.key()]), param.key());
          const torch::Tensor &ours = param.value().grad(), want = theirs[param.key()].grad();
          RANK_CHECK(ours.defined() == want.defined(), param.key());
          if (want.defined()) RANK_CHECK(torch::allclose(ours, want, 1e-5, 1e-6), param.key());
        }
      }
    }
    for (const auto& [name, state] : unit_states(both.net))
      RANK_CHECK(state == "(Sharded, Idle, None)", name + state);
  });
}

TEST_CASE("values on the host that a kept forward left behind are no longer used",
          "[runtime][summon]") {
  run_threads(2, [](World& world) {
    Both both(world, {2, ShardingStrategy::kShardGradOp}, MemoryLayout::kFlat, false);
    const torch::Tensor loss = both.net->forward(both.data.x).square().mean();  // kept
    SummonOptions options;
    options.offload_to_cpu = true;
    options.recurse = false;
    {
      const SummonFullParams full(both.net, options);
      RANK_CHECK(torch::equal(both.net->head->weight, both.plain->head->weight));
    }
    loss.backward();
    both.plain->forward(both.data.x).square().mean().backward();
    SummonOptions with_grads;
    with_grads.with_grads = true;
    const SummonFullParams full(both.net, with_grads);
    const auto theirs = both.plain->named_parameters();
    for (const auto& param : both.net->named_parameters())
      RANK_CHECK(torch::allclose(param.value().grad(), theirs[param.key()].grad(), 1e-5, 1e-6),
                 param.key());
  });
}

}  // namespace runtime_summon_offload_test
