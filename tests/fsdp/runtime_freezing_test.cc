// Frozen parameters over time: resharded in backward, nothing that grows, unfrozen later. And
// modules that are ignored.
#include <fmt/format.h>
#include <torch/csrc/autograd/variable.h>

#include "fsdp_core/runtime/root.h"
#include "fsdp_core/runtime/unit.h"
#include "tests/fsdp/models.h"
#include "tests/fsdp/torch_and_catch.h"

namespace runtime_freezing_test {

using namespace tessera::fsdp;
using namespace tessera::fsdp::test;

namespace {

void freeze(Net& net, std::size_t first, std::size_t step, bool frozen) {
  for (std::size_t i = first; i < net->blocks.size(); i += step)
    for (auto& param : net->blocks[i]->parameters()) param.set_requires_grad(!frozen);
}

/// Hooks and what stands behind them, of the whole tree.
std::string live_hooks(Net& net, const torch::Tensor& input) {
  std::size_t uses = 0, params = 0;
  std::vector<std::shared_ptr<torch::nn::Module>> modules = {net.ptr()};
  for (Block& block : net->blocks) modules.push_back(block.ptr());
  for (const auto& module : modules) {
    auto& unit = *dynamic_cast<HookPoint&>(*module).unit;
    uses += unit.live_uses();
    for (const auto& group : unit.groups())
      for (const Param& param : group->params())
        params += torch::autograd::impl::post_acc_grad_hooks(param.compute) != nullptr;
  }
  return fmt::format("uses {}, parameters {}, input {}", uses, params,
                     input.requires_grad() ? torch::autograd::impl::hooks(input).size() : 0);
}

struct WithNormImpl : torch::nn::Module {
  torch::nn::Linear linear{nullptr};
  torch::nn::BatchNorm1d ignored{nullptr}, normal{nullptr};
  torch::Dtype ignored_seen = torch::kFloat, normal_seen = torch::kFloat;
  WithNormImpl() {
    linear = register_module("linear", torch::nn::Linear(4, 4));
    ignored = register_module("ignored", torch::nn::BatchNorm1d(4));
    normal = register_module("normal", torch::nn::BatchNorm1d(4));
  }
  torch::Tensor forward(torch::Tensor x) {
    ignored_seen = ignored->running_mean.scalar_type();
    normal_seen = normal->running_mean.scalar_type();
    return ignored->forward(linear->forward(x)) + normal->running_mean.to(torch::kFloat);
  }
};
FSDP_MODULE(WithNorm);

}  // namespace

TEST_CASE("hooks do not grow over 1000 steps with frozen parameters, freed after forward or kept",
          "[runtime][frozen]") {
  const bool input_grad = GENERATE(false, true);
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  const auto strategy = GENERATE(ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp);
  CAPTURE(input_grad, static_cast<int>(layout), strategy);
  run_threads(2, [&](World& world) {
    Net net = make_net(4, 4, 5, 2);
    freeze(net, 0, 2, true);
    Options options;
    options.mesh = world.mesh();
    options.layout = layout;
    options.strategy = strategy;
    shard(net, options);
    const Data data = make_data(2, 4, 2);
    torch::Tensor x = data.x.clone().set_requires_grad(input_grad);
    std::string early;
    for (int step = 0; step < 1000; ++step) {
      torch::mse_loss(net->forward(x), data.y).backward();
      if (step == 2) early = live_hooks(net, x);
      if (step % 100 == 99) RANK_CHECK(live_hooks(net, x) == early, live_hooks(net, x));
    }
  });
}

TEST_CASE("frozen units are resharded during backward - the first of them at its end",
          "[runtime][frozen]") {
  const bool input_grad = GENERATE(false, true);
  run_threads(2, [&](World& world) {
    Net net = make_net(6);
    freeze(net, 0, 2, true);
    net->stem->weight.set_requires_grad(false);
    net->stem->bias.set_requires_grad(false);
    Options options;
    options.mesh = world.mesh();
    shard(net, options);
    const Data data = make_data();
    for (int step = 0; step < 3; ++step) {
      torch::Tensor x = data.x.clone().set_requires_grad(input_grad) * 1.0;
      int sharded = -1, most = 0;
      auto count = [&] {
        int blocks = 0;
        for (const auto& [name, state] : unit_states(net))
          blocks += !name.empty() && state.starts_with("(Sharded");
        return blocks;
      };
      if (input_grad) x.register_hook([&](const torch::Tensor&) { sharded = count(); });
      world.communicator()->observe([&](const CommRecord& record) {
        if (record.op == CommOp::kAllGather && record.phase == CommPhase::kBackward)
          most = std::max(most, 6 - count());
      });
      torch::mse_loss(net->forward(x), data.y).backward();
      world.communicator()->observe({});
      if (input_grad) RANK_CHECK(sharded == 6, fmt::format("{}", sharded));
      RANK_CHECK(most <= 2, fmt::format("{} units at a time", most));
      for (const auto& [name, state] : unit_states(net))
        RANK_CHECK(state == "(Sharded, Idle, None)", name + state);
    }
  });
}

TEST_CASE("parameters unfrozen after some steps train as in the plain module",
          "[runtime][frozen]") {
  const auto strategy = GENERATE(ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp,
                                 ShardingStrategy::kNoShard);
  const bool input_grad = GENERATE(false, true);
  const bool unfreeze = GENERATE(false, true);
  CAPTURE(strategy_name(strategy), input_grad, unfreeze);
  run_threads(2, [&](World& world) {
    Net net = make_net(6), plain = make_net(6);
    freeze(net, 0, 2, true);
    freeze(plain, 0, 2, true);
    Options options;
    options.mesh = world.mesh();
    options.strategy = strategy;
    shard(net, options);
    torch::optim::SGD ours(net->parameters(), 0.05), theirs(plain->parameters(), 0.05);
    const Data data = make_data();
    auto step = [&](Net& n, torch::optim::SGD& optimizer) {
      optimizer.zero_grad();
      auto loss = torch::mse_loss(n->forward(data.x.clone().set_requires_grad(input_grad)), data.y);
      loss.backward();
      optimizer.step();
      return loss.item<double>();
    };
    auto both = [&](int steps) {
      for (int i = 0; i < steps; ++i) {
        const double a = step(net, ours), b = step(plain, theirs);
        RANK_CHECK(std::abs(a - b) <= 1e-6 * std::abs(b), fmt::format("{} and {}", a, b));
      }
    };
    both(3);
    {
      torch::NoGradGuard no_grad;
      RANK_CHECK(torch::allclose(net->forward(data.x), plain->forward(data.x), 1e-5, 1e-6));
    }
    if (unfreeze) {
      freeze(net, 0, 2, false);
      freeze(plain, 0, 2, false);
    }
    both(3);
    for (const auto& param : net->parameters()) RANK_CHECK(param.requires_grad() || !unfreeze);
    SummonFullParams full(net);
    const auto want = plain->named_parameters();
    for (const auto& param : net->named_parameters())
      RANK_CHECK(torch::allclose(param.value(), want[param.key()], 1e-5, 1e-6), param.key());
  });
}

TEST_CASE("buffers of ignored modules keep dtype and memory", "[runtime][ignored]") {
  run_threads(2, [](World& world) {
    WithNorm net;
    Options options;
    options.mesh = world.mesh();
    options.mixed_precision.buffer_dtype = torch::kHalf;
    options.ignored_modules = {net->ignored.ptr()};
    const void* memory = net->ignored->running_mean.data_ptr();
    const auto weight = net->ignored->weight;
    fully_shard(net, options);
    torch::Tensor x = torch::ones({4, 4}) * torch::arange(4).view({4, 1});
    net->forward(x).sum().backward();
    RANK_CHECK(net->ignored_seen == torch::kFloat && net->normal_seen == torch::kHalf);
    RANK_CHECK(net->ignored->running_mean.scalar_type() == torch::kFloat);
    RANK_CHECK(net->ignored->running_mean.data_ptr() == memory);
    RANK_CHECK(net->ignored->running_mean.abs().sum().item<float>() > 0);  // its own statistics
    // Neither sharded nor reduced.
    RANK_CHECK(net->ignored->weight.is_same(weight) && weight.sizes() == torch::IntArrayRef{4});
    RANK_CHECK(weight.grad().defined() && weight.grad().sizes() == torch::IntArrayRef{4});
  });
}

}  // namespace runtime_freezing_test
