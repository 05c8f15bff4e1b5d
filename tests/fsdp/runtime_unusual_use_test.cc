// Uses that no example shows: two models under one loss, backwards in another order or thread,
// batches without rows, units without parameters, models sharded over more ranks than they have
// elements. All as the plain modules.
#include <fmt/format.h>

#include <thread>

#include "fsdp_core/runtime/unit_groups.h"
#include "tests/fsdp/beside_plain.h"
#include "tests/fsdp/full_gradients.h"
#include "tests/fsdp/strategies.h"
#include "tests/fsdp/torch_and_catch.h"

namespace runtime_unusual_use_test {

using namespace tessera::fsdp;
using namespace tessera::fsdp::test;

namespace {

ShardingStrategy any_sharding() {
  return GENERATE(ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp,
                  ShardingStrategy::kNoShard);
}

void check_idle(const ModuleRef& module, const std::string& where) {
  for (const auto& [name, state] : unit_states(module))
    RANK_CHECK(state == "(Sharded, Idle, None)", where + " " + name + state);
}

/// Runs `use` on a sharded net and on the plain one, twice, and compares what accumulated.
void as_plain(ShardingStrategy strategy, const std::function<void(Net&, const Data&)>& use) {
  run_threads(2, [&](World& world) {
    auto [options, net, plain, data] = BesidePlain(world, {.strategy = strategy}, 2);
    for (int step = 0; step < 2; ++step) {
      use(net, data);
      use(plain, data);
      check_idle(net, std::to_string(step));
      check_full_gradients(net, plain, std::to_string(step));
    }
  });
}

}  // namespace

TEST_CASE("backwards run in any order and as often as autograd lets", "[runtime][unusual]") {
  const auto strategy = any_sharding();
  CAPTURE(strategy_name(strategy));
  as_plain(strategy, [](Net& net, const Data& data) {
    const auto first = torch::mse_loss(net->forward(data.x), data.y);
    const auto second = net->forward(data.x * 2).square().mean();
    const auto third = net->forward(data.x * 3).abs().mean();
    second.backward();
    third.backward();
    first.backward();
  });
  as_plain(strategy, [](Net& net, const Data& data) {
    const auto loss = torch::mse_loss(net->forward(data.x), data.y);
    loss.backward({}, /*retain_graph=*/true);
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
  });
  as_plain(strategy, [](Net& net, const Data& data) {
    const auto y = net->forward(data.x);
    y.narrow(1, 0, 2).square().mean().backward({}, /*retain_graph=*/true);
    y.narrow(1, 2, 3).abs().mean().backward();
  });
}

TEST_CASE("an inner unit is called alone between a forward and its backward",
          "[runtime][unusual]") {
  const auto strategy = any_sharding();
  as_plain(strategy, [](Net& net, const Data& data) {
    const auto loss = torch::mse_loss(net->forward(data.x), data.y);
    const auto alone = net->blocks[1]->forward(data.x).square().mean();
    loss.backward();
    alone.backward();
  });
  as_plain(strategy, [](Net& net, const Data& data) {
    const auto alone = net->blocks[1]->forward(data.x);
    (torch::mse_loss(net->forward(alone), data.y) + alone.square().mean()).backward();
  });
}

TEST_CASE("a backward may run in another thread than its forward", "[runtime][unusual]") {
  as_plain(any_sharding(), [](Net& net, const Data& data) {
    const auto loss = torch::mse_loss(net->forward(data.x), data.y);
    std::string thrown;
    std::thread([&] { thrown = message_of([&] { loss.backward(); }); }).join();
    RANK_CHECK(thrown.empty(), thrown);
  });
}

TEST_CASE("a batch without rows gives gradients of zero and trains on", "[runtime][unusual]") {
  as_plain(any_sharding(), [](Net& net, const Data& data) {
    net->forward(data.x.narrow(0, 0, 0)).sum().backward();
    torch::mse_loss(net->forward(data.x), data.y).backward();
  });
}

TEST_CASE("two models train under one loss and one inside the other's graph",
          "[runtime][unusual]") {
  const auto strategy = any_sharding();
  const auto other_strategy =
      GENERATE(ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp);
  const bool chained = GENERATE(false, true);
  CAPTURE(strategy_name(strategy), strategy_name(other_strategy), chained);
  run_threads(2, [&](World& world) {
    auto [options, a, plain_a, data] = BesidePlain(world, {.strategy = strategy}, 2);
    Options inner;
    inner.mesh = world.mesh();
    inner.strategy = other_strategy;
    Net b = make_net(1, 5, 7, 5), plain_b = make_net(1, 5, 7, 5);
    shard(b, inner);
    const auto use = [&, &data = data](Net& first, Net& second) {
      const torch::Tensor y = first->forward(data.x);
      const torch::Tensor z = second->forward(chained ? y : data.y);
      (torch::mse_loss(y, data.y) + z.square().mean()).backward();
    };
    for (int step = 0; step < 3; ++step) {
      use(a, b);
      use(plain_a, plain_b);
      check_idle(a, "first");
      check_idle(b, "second");
      check_full_gradients(a, plain_a, "first");
      check_full_gradients(b, plain_b, "second");
      // An adversary: the second alone, on what the first gave.
      for (Net* pair : {&b, &plain_b}) {
        Net& maker = pair == &b ? a : plain_a;
        (*pair)->forward(maker->forward(data.x).detach()).square().mean().backward();
      }
      check_full_gradients(b, plain_b, "second alone");
    }
  });
}

TEST_CASE("units without parameters are called like others", "[runtime][unusual]") {
  struct GapsImpl : torch::nn::Module {
    Holder<torch::nn::ReLUImpl> before{nullptr}, after{nullptr};
    Holder<torch::nn::LinearImpl> linear{nullptr};
    GapsImpl() {
      before = register_module("before", Holder<torch::nn::ReLUImpl>());
      linear = register_module("linear", Holder<torch::nn::LinearImpl>(5, 5));
      after = register_module("after", Holder<torch::nn::ReLUImpl>());
    }
    torch::Tensor forward(torch::Tensor x) {
      return after->forward(linear->forward(before->forward(x)));
    }
  };
  const auto strategy = any_sharding();
  const bool ahead = GENERATE(false, true);
  const bool frozen = GENERATE(false, true);
  run_threads(3, [&](World& world) {
    const auto make = [&] {
      const std::lock_guard lock(generator_mutex());
      torch::manual_seed(8);
      Holder<GapsImpl> net;
      if (frozen) net->linear->weight.set_requires_grad(false);
      return net;
    };
    Holder<GapsImpl> net = make(), plain = make();
    Options options;
    options.mesh = world.mesh();
    options.strategy = strategy;
    options.forward_prefetch = ahead;
    fully_shard(net->before, options);
    fully_shard(net->linear, options);
    fully_shard(net->after, options);
    fully_shard(net, options);
    for (int step = 0; step < 3; ++step) {
      torch::Tensor x = torch::arange(10, torch::kFloat).view({2, 5}).sin();
      x.set_requires_grad(step == 1);
      net->forward(x).square().sum().backward();
      const torch::Tensor ours = x.grad().defined() ? x.grad().clone() : torch::zeros({});
      x.mutable_grad().reset();
      plain->forward(x).square().sum().backward();
      if (step == 1) RANK_CHECK(torch::allclose(ours, x.grad()));
      check_idle(net, std::to_string(step));
      check_full_gradients(net, plain);
    }
  });
}

TEST_CASE("more ranks than elements in every strategy and layout", "[runtime][unusual]") {
  struct FewImpl : torch::nn::Module {
    torch::Tensor one, none, row;
    FewImpl() {
      one = register_parameter("one", torch::full({1}, 0.5));
      none = register_parameter("none", torch::ones({0, 3}));
      row = register_parameter("row", torch::full({2, 2}, 0.25));
    }
    torch::Tensor forward(torch::Tensor x) {
      return x.matmul(row.to(x.scalar_type())) * one + none.sum();
    }
  };
  const auto strategy = GENERATE(from_range(all_strategies()));
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  const bool low = GENERATE(false, true);
  const bool ahead = GENERATE(false, true);
  CAPTURE(strategy_name(strategy), layout == MemoryLayout::kFlat, low, ahead);
  run_threads(8, [&](World& world) {
    torch::nn::Sequential net{Holder<FewImpl>(), Holder<FewImpl>()};
    torch::nn::Sequential plain{Holder<FewImpl>(), Holder<FewImpl>()};
    Options options;
    options.mesh = strategy_of(strategy).hybrid()
                       ? DeviceMesh(world, {2, 4}, {"replicate", "shard"})
                       : world.mesh();
    options.strategy = strategy;
    options.layout = layout;
    options.forward_prefetch = ahead;
    if (low) options.mixed_precision.param_dtype = torch::kBFloat16;
    for (const auto& child : net->children()) fully_shard(child, options);
    torch::optim::Adam ours(net->parameters(), 0.125), theirs(plain->parameters(), 0.125);
    const torch::Tensor x = torch::ones({2, 2});
    for (int step = 0; step < 3; ++step) {
      ours.zero_grad();
      theirs.zero_grad();
      net->forward(x).to(torch::kFloat).square().sum().backward();
      plain->forward(x).square().sum().backward();
      ours.step();
      theirs.step();
    }
    std::size_t child = 0;
    for (const auto& unit : net->children()) {
      const SummonFullParams full(unit);
      const auto want = plain->children()[child++]->named_parameters();
      for (const auto& param : unit->named_parameters())
        RANK_CHECK(torch::allclose(param.value(), want[param.key()], low ? 5e-2 : 1e-5, 1e-6),
                   param.key());
    }
  });
}

}  // namespace runtime_unusual_use_test
