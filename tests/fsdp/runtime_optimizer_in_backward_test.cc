// Optimizer steps inside backward: the values of stepping afterwards, less memory, and everything
// that does not go with it refused by name.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "fsdp_core/runtime/root.h"
#include "fsdp_core/stream/stream.h"
#include "tests/fsdp/counting_memory.h"
#include "tests/fsdp/models.h"
#include "tests/fsdp/torch_and_catch.h"

namespace runtime_optimizer_in_backward_test {

using namespace tessera::fsdp;
using namespace tessera::fsdp::test;

namespace {

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::shared_ptr<torch::optim::Optimizer> make(const std::string& kind,
                                              std::vector<torch::Tensor> params) {
  if (kind == "Adam")
    return std::make_shared<torch::optim::Adam>(params, torch::optim::AdamOptions(1e-2));
  if (kind == "AdamW")
    return std::make_shared<torch::optim::AdamW>(
        params, torch::optim::AdamWOptions(1e-2).weight_decay(0.1).amsgrad(true));
  if (kind == "FusedAdamW")
    return std::make_shared<FusedAdamW>(params, torch::optim::AdamWOptions(1e-2));
  return std::make_shared<torch::optim::SGD>(params, torch::optim::SGDOptions(0.05).momentum(0.9));
}

OptimizerFactory factory(const std::string& kind) {
  return [kind](std::vector<torch::Tensor> params) { return make(kind, std::move(params)); };
}

void run_backward(Net& net, const Data& data) {
  torch::mse_loss(net->forward(data.x).to(torch::kFloat), data.y).backward();
}

/// Five steps, inside backward and after it: the same shards.
void check_equal_training(World& world, const Options& options, const std::string& kind) {
  Net ours = make_net(), theirs = make_net();
  shard(ours, options);
  shard(theirs, options);
  optimizer_in_backward(ours, factory(kind));
  auto optimizer = make(kind, theirs->parameters());
  const Data data = part_of(make_data(), world.rank(), world.size());
  for (int step = 0; step < 5; ++step) {
    run_backward(ours, data);
    for (const auto& param : ours->parameters()) RANK_CHECK(!param.grad().defined());
    optimizer->zero_grad();
    run_backward(theirs, data);
    optimizer->step();
    const auto want = theirs->named_parameters();
    for (const auto& param : ours->named_parameters())
      // The fused kernel splits its work as it likes.
      RANK_CHECK(kind == "FusedAdamW"
                     ? torch::allclose(param.value(), want[param.key()], 1e-5, 1e-6)
                     : torch::equal(param.value(), want[param.key()]),
                 fmt::format("{} after step {}", param.key(), step));
  }
}

}  // namespace

TEST_CASE("stepping inside backward is bit-equal to stepping after it", "[runtime][stepinside]") {
  const auto kind = GENERATE("Adam", "AdamW", "SGD", "FusedAdamW");
  const int world_size = GENERATE(1, 2, 3, 4);
  CAPTURE(kind, world_size);
  run_threads(world_size, [&](World& world) {
    for (const auto strategy :
         {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp, ShardingStrategy::kNoShard})
      for (const bool offload : {false, true}) {
        Options options;
        options.mesh = world.mesh();
        options.strategy = strategy;
        options.cpu_offload.offload_params = offload;
        if (offload) options.layout = MemoryLayout::kPerParameter;
        check_equal_training(world, options, kind);
      }
  });
}

TEST_CASE("stepping inside backward after two reductions - in bf16 - and over sockets",
          "[runtime][stepinside]") {
  run_threads(4, [&](World& world) {
    Options options;
    options.mesh = DeviceMesh(world, {2, 2}, {"replicate", "shard"});
    options.strategy = ShardingStrategy::kHybridShard;
    check_equal_training(world, options, "AdamW");
  });
  WorldOptions gloo;
  gloo.backend = "gloo";
  run_threads(
      2,
      [&](World& world) {
        Options options;
        options.mesh = world.mesh();
        options.mixed_precision.param_dtype = torch::kBFloat16;
        options.mixed_precision.cast_forward_inputs = true;
        check_equal_training(world, options, "Adam");
      },
      gloo);
}

TEST_CASE("stepping inside backward waits for late reductions", "[runtime][stepinside]") {
  const auto strategy = GENERATE(ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp,
                                 ShardingStrategy::kHybridShard);
  const std::uint64_t seed = GENERATE(1, 2);
  const bool offload = GENERATE(false, true);
  CAPTURE(strategy_name(strategy), seed, offload);
  run_threads(4, [&](World& world) {
    tessera::fsdp::detail::Root::use_streams(
        simulated_streams(seed * 10 + static_cast<std::uint64_t>(world.rank()), 1000));
    Options options;
    options.mesh = strategy == ShardingStrategy::kHybridShard
                       ? DeviceMesh(world, {2, 2}, {"replicate", "shard"})
                       : world.mesh();
    options.strategy = strategy;
    options.cpu_offload.offload_params = offload;
    check_equal_training(world, options, "Adam");
    tessera::fsdp::detail::Root::use_streams(nullptr);
  });
}

TEST_CASE("frozen parameters and those that nobody uses are left alone", "[runtime][stepinside]") {
  run_threads(2, [](World& world) {
    Net net = make_net();
    for (auto& param : net->blocks[1]->parameters()) param.set_requires_grad(false);
    Options options;
    options.mesh = world.mesh();
    shard(net, options);
    std::vector<torch::Tensor> before;
    for (const auto& param : net->blocks[1]->parameters()) before.push_back(param.clone());
    optimizer_in_backward(net, factory("AdamW"));
    run_backward(net, make_data());
    auto after = net->blocks[1]->parameters();
    for (std::size_t p = 0; p < before.size(); ++p) RANK_CHECK(torch::equal(before[p], after[p]));
    // Trained from now on: the optimizer holds them.
    for (auto& param : net->blocks[1]->parameters()) param.set_requires_grad(true);
    run_backward(net, make_data());
    after = net->blocks[1]->parameters();
    for (std::size_t p = 0; p < before.size(); ++p)
      RANK_CHECK(after[p].numel() == 0 || !torch::equal(before[p], after[p]));
  });
}

TEST_CASE("the shard gradients of one unit exist at a time", "[runtime][stepinside]") {
  constexpr int kDepth = 8;
  std::int64_t most[2] = {0, 0};
  for (const bool inside : {false, true}) {
    const CountMemory memory;
    run_threads(2, [&](World& world) {
      Net net = make_net(kDepth, 64, 512, 4);
      Options options;
      options.mesh = world.mesh();
      shard(net, options);
      std::shared_ptr<torch::optim::Optimizer> optimizer;
      if (inside)
        optimizer_in_backward(net, factory("SGD"));
      else
        optimizer = make("SGD", net->parameters());
      const Data data = make_data(4, 64, 4);
      for (int step = 0; step < 3; ++step) {
        world.communicator()->barrier({});
        peak = live.load();
        world.communicator()->barrier({});
        run_backward(net, data);
        if (optimizer) {
          optimizer->step();
          optimizer->zero_grad();
        }
        world.communicator()->barrier({});
      }
      if (world.rank() == 0) most[inside] = peak;
    });
  }
  // One unit's whole parameters: over both ranks, its shard gradients.
  const std::int64_t unit = (64 * 512 * 2 + 512 + 64) * 4;
  INFO(fmt::format("after backward {} bytes, inside {}, a unit {}", most[0], most[1], unit));
  // Shard gradients of eight units against those of one, at times of one more.
  CHECK(most[0] - most[1] >= (kDepth - 2) * unit);
}

TEST_CASE("each unit's optimizer is at hand - with its parameters by name",
          "[runtime][stepinside]") {
  run_threads(3, [](World& world) {
    Net net = make_net();
    Options options;
    options.mesh = world.mesh();
    shard(net, options);
    RANK_CHECK(optimizers_in_backward(net).empty());
    optimizer_in_backward(net, factory("AdamW"));
    const auto all = optimizers_in_backward(net);
    RANK_CHECK(all.size() == 4 && all[0].unit == "blocks0" && all[3].unit == "");
    const auto registered = net->named_parameters();
    std::size_t seen = 0;
    for (const UnitOptimizer& each : all) {
      const auto& held = each.optimizer->param_groups()[0].params();
      RANK_CHECK(held.size() == each.parameters.size());
      for (std::size_t p = 0; p < held.size(); ++p, ++seen) {
        RANK_CHECK(held[p].is_same(each.parameters[p].second));
        RANK_CHECK(registered[each.parameters[p].first].is_same(held[p]), each.parameters[p].first);
      }
    }
    RANK_CHECK(seen == registered.size());
    run_backward(net, make_data());
    for (const UnitOptimizer& each : all)
      RANK_CHECK(each.optimizer->state().size() == each.parameters.size());
    // A learning rate of nothing moves nothing.
    std::vector<torch::Tensor> before;
    for (const auto& param : net->parameters()) before.push_back(param.clone());
    for (const UnitOptimizer& each : all) {
      auto& group =
          static_cast<torch::optim::AdamWOptions&>(each.optimizer->param_groups()[0].options());
      group.lr(0);
    }
    run_backward(net, make_data());
    const auto after = net->parameters();
    for (std::size_t p = 0; p < before.size(); ++p) RANK_CHECK(torch::equal(before[p], after[p]));
  });
}

TEST_CASE("what does not go with steps inside backward is refused by name",
          "[runtime][stepinside]") {
  run_threads(2, [](World& world) {
    Net net = make_net();
    Options options;
    options.mesh = world.mesh();
    shard(net, options);
    const Data data = make_data();
    auto refused = [&](const std::function<void()>& f, const char* word) {
      const std::string message = message_of(f);
      RANK_CHECK(has(message, word) && has(message, "optimizer_in_backward"), message);
    };
    auto install = [&](OptimizerFactory f) { optimizer_in_backward(net, f); };
    refused([&] { install({}); }, "factory is empty");
    refused([&] { install([](auto) { return nullptr; }); }, "no optimizer");
    refused([&] { install([](auto p) { return std::make_shared<torch::optim::LBFGS>(p); }); },
            "L-BFGS");
    refused(
        [&] {
          install([](auto p) {
            p.pop_back();
            return make("SGD", p);
          });
        },
        "lacks \"blocks0.b.bias\"");
    refused([&] { install([&](auto) { return make("SGD", net->parameters()); }); },
            "holds a tensor");
    {
      NoSync no_sync(net);
      refused([&] { install(factory("SGD")); }, "synchronisation");
    }
    run_backward(net, data);
    refused([&] { install(factory("SGD")); }, "waits for a step");
    for (auto& param : net->parameters()) param.mutable_grad().reset();
    RANK_CHECK(optimizers_in_backward(net).empty());  // nothing of all that stayed

    install(factory("SGD"));
    refused([&] { install(factory("SGD")); }, "already");
    refused([&] { clip_grad_norm_(net, 1.0); }, "clip_grad_norm_");
    refused([&] { NoSync no_sync(net); }, "NoSync");
    refused([&] { set_requires_gradient_sync(net, false); }, "set_requires_gradient_sync");
    refused([&] { set_requires_all_reduce(net, false); }, "set_requires_all_reduce");
    set_requires_gradient_sync(net, true);
    ShardedGradScaler scaler(world.communicator());
    auto optimizer = optimizers_in_backward(net).front().optimizer;
    refused([&] { scaler.unscale_(*optimizer); }, "ShardedGradScaler");
    refused([&] { scaler.step(*optimizer); }, "ShardedGradScaler");
    run_backward(net, data);
  });
}

TEST_CASE("a scaled loss and a second backward are refused before a wrong step",
          "[runtime][stepinside]") {
  const auto what = GENERATE("scaled", "retained", "forward forward backward backward");
  CAPTURE(what);
  run_threads(2, [&](World& world) {
    Net net = make_net();
    Options options;
    options.mesh = world.mesh();
    shard(net, options);
    optimizer_in_backward(net, factory("SGD"));
    const Data data = make_data();
    run_backward(net, data);
    std::vector<torch::Tensor> before;
    auto keep = [&] {
      before.clear();
      for (const auto& param : net->parameters()) before.push_back(param.clone());
    };
    const std::string message = message_of([&] {
      keep();
      auto loss = torch::mse_loss(net->forward(data.x), data.y);
      if (std::string(what) == "scaled") {
        ShardedGradScaler scaler(world.communicator());
        scaler.scale(loss).backward();
      } else if (std::string(what) == "retained") {
        loss.backward({}, /*retain_graph=*/true);
        keep();
        loss.backward();
      } else {
        auto other = net->forward(data.x * 2).square().mean();
        loss.backward();
        keep();
        other.backward();
      }
    });
    RANK_CHECK(
        has(message, std::string(what) == "scaled" ? "ShardedGradScaler" : "second backward"),
        message);
    World(world).reset();
    RANK_CHECK(reset(net).stepped_units.empty());
    const auto after = net->parameters();
    for (std::size_t p = 0; p < before.size(); ++p) RANK_CHECK(torch::equal(before[p], after[p]));
    run_backward(net, data);
  });
}

TEST_CASE("after a failed step reset tells which units had stepped", "[runtime][stepinside]") {
  const bool in_reduction = GENERATE(true, false);
  const int world_size = GENERATE(1, 3);
  CAPTURE(in_reduction, world_size);
  run_threads(world_size, [&](World& world) {
    Net net = make_net();
    Options options;
    options.mesh = world.mesh();
    shard(net, options);
    optimizer_in_backward(net, factory("Adam"));
    bool fails = false;
    auto reduce = average_hook().function;
    register_comm_hook(net, [&](GradientBucket& bucket) {
      if (fails && in_reduction && bucket.tag.unit == "blocks1")
        throw std::runtime_error("no more reductions");
      reduce(bucket);
    });
    const Data data = make_data();
    run_backward(net, data);
    RANK_CHECK(reset(net).stepped_units.empty());
    fails = world.rank() == world.size() - 1;
    const std::string message = message_of([&] {
      auto x = data.x;
      if (fails && !in_reduction) {
        x = x.clone().set_requires_grad(true) * 1.0;
        x.register_hook(
            [](const torch::Tensor&) { throw std::runtime_error("thrown at the end"); });
      }
      torch::mse_loss(net->forward(x), data.y).backward();
    });
    RANK_CHECK(!message.empty());
    // Not even alone does training go on as if nothing had been.
    RANK_CHECK(has(message_of([&] { net->forward(data.x); }), "reset"));
    World(world).reset();
    const auto stepped = reset(net).stepped_units;
    const std::vector<std::string> want =
        in_reduction ? std::vector<std::string>{"blocks2"}
                     // The hooks of units run before the user's own: the root has stepped too.
                     : std::vector<std::string>{"blocks0", "blocks1", "blocks2", ""};
    RANK_CHECK(stepped == want, fmt::format("{}", fmt::join(stepped, " ")));
    fails = false;
    run_backward(net, data);
    RANK_CHECK(reset(net).stepped_units.empty());
  });
}

}  // namespace runtime_optimizer_in_backward_test
