// Hybrid strategies and meshes, summon, tied parameters, tiny parameters, options that exclude each
// other.
#include <fmt/format.h>

#include "tests/fsdp/models.h"
#include "tests/fsdp/strategies.h"
#include "tests/fsdp/torch_and_catch.h"

namespace runtime_strategy_test {

using namespace tessera::fsdp;
using namespace tessera::fsdp::test;

namespace {

/// Losses of `steps` Adam steps.
std::vector<double> losses_of(Net& net, const Data& data, Communicator* comm, int steps = 4) {
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(1e-2));
  std::vector<double> out;
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    auto loss = torch::mse_loss(net->forward(data.x), data.y);
    loss.backward();
    optimizer.step();
    out.push_back(mean_loss(loss, comm));
  }
  return out;
}

std::vector<double> plain_losses() {
  Net plain = make_net();
  return losses_of(plain, make_data(), nullptr);
}

bool near(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (std::abs(a[i] - b[i]) > 1e-6 * std::abs(b[i])) return false;
  return true;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("hybrid sharding equals the plain module - whatever the mesh", "[runtime][hybrid]") {
  const std::vector<double> plain = plain_losses();
  const auto strategy = GENERATE(from_range(hybrid_strategies()));
  const auto sizes = GENERATE(std::vector<std::int64_t>{2, 2}, std::vector<std::int64_t>{2, 1},
                              std::vector<std::int64_t>{1, 3}, std::vector<std::int64_t>{2, 3},
                              std::vector<std::int64_t>{3, 2});
  CAPTURE(static_cast<int>(strategy), sizes);
  run_threads(static_cast<int>(sizes[0] * sizes[1]), [&](World& world) {
    Net net = make_net();
    Options options;
    options.mesh = DeviceMesh(world, sizes, {"replicate", "shard"});
    options.strategy = strategy;
    shard(net, options);
    const Data data = part_of(make_data(), world.rank(), world.size());
    RANK_CHECK(near(losses_of(net, data, world.communicator().get()), plain));
  });
}

TEST_CASE("states are synchronised from rank 0 - over shards and replicas", "[runtime][hybrid]") {
  run_threads(4, [](World& world) {
    Net net = [&] {
      std::lock_guard lock(generator_mutex());
      torch::manual_seed(100 + world.rank());
      return Net(2, 5, 7, 3);
    }();
    Options options;
    options.mesh = DeviceMesh(world, {2, 2}, {"replicate", "shard"});
    options.strategy = ShardingStrategy::kHybridShard;
    options.sync_module_states = true;
    shard(net, options);
    SummonFullParams full(net);
    for (const auto& param : net->parameters()) {
      torch::Tensor first = param.detach().clone().view({-1});
      world.communicator()->broadcast(first, 0, {});
      RANK_CHECK(torch::equal(first, param.detach().view({-1})));
    }
  });
}

TEST_CASE("summoned parameters are the plain ones - each rank writes its own part back",
          "[runtime][summon]") {
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  const auto strategy = GENERATE(ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp,
                                 ShardingStrategy::kNoShard);
  run_threads(3, [&](World& world) {
    Net net = make_net(), plain = make_net();
    Options options;
    options.mesh = world.mesh();
    options.layout = layout;
    options.strategy = strategy;
    shard(net, options);
    {
      SummonFullParams full(net);
      const auto theirs = plain->named_parameters();
      for (auto& param : net->named_parameters()) {
        RANK_CHECK(torch::equal(param.value(), theirs[param.key()]), param.key());
        torch::NoGradGuard no_grad;
        param.value().mul_(2);
      }
      RANK_CHECK(has(message_of([&] { SummonFullParams nested(net); }), "summon"));
    }
    SummonFullParams again(net);
    const auto theirs = plain->named_parameters();
    for (auto& param : net->named_parameters())
      RANK_CHECK(torch::equal(param.value(), theirs[param.key()] * 2), param.key());
  });
}

TEST_CASE("rank 0 alone can be given the full parameters", "[runtime][summon]") {
  run_threads(3, [](World& world) {
    Net net = make_net(), plain = make_net();
    Options options;
    options.mesh = world.mesh();
    shard(net, options);
    SummonOptions summon;
    summon.rank0_only = true;
    RANK_CHECK(has(message_of([&] { SummonFullParams full(net, summon); }), "write_back"));
    summon.write_back = false;
    {
      SummonFullParams full(net, summon);
      if (world.rank() == 0)
        RANK_CHECK(torch::equal(net->head->weight, plain->head->weight));
      else
        RANK_CHECK(has(message_of([&] { net->head->weight + 1; }), "head.weight"));
    }
    for (const auto& [name, state] : unit_states(net))
      RANK_CHECK(state == "(Sharded, Idle, None)", name + state);
  });
}

TEST_CASE("an optimizer step between forwards is seen - also through kept parameters",
          "[runtime][summon]") {
  run_threads(2, [](World& world) {
    Net net = make_net(), plain = make_net();
    Options options;
    options.mesh = world.mesh();
    options.strategy = ShardingStrategy::kShardGradOp;
    shard(net, options);
    const Data data = make_data();
    net->forward(data.x);  // keeps everything, no backward follows
    {
      torch::NoGradGuard no_grad;
      for (auto& param : net->parameters()) param.mul_(0.5);
      for (auto& param : plain->parameters()) param.mul_(0.5);
    }
    RANK_CHECK(torch::allclose(net->forward(data.x), plain->forward(data.x), 1e-5, 1e-6));
  });
}

TEST_CASE("tied parameters stay one in a unit - and are refused across units", "[runtime][tied]") {
  run_threads(2, [](World& world) {
    struct TiedImpl : torch::nn::Module {
      Block first{nullptr}, second{nullptr};
      TiedImpl() {
        first = register_module("first", Block(5, 5));
        second = register_module("second", Block(5, 5));
        second->b->weight = first->a->weight;
        second->b->named_parameters(false);
        // The registry shows the same tensor too, as tying does.
        second->b->weight = first->a->weight;
        struct Open : torch::nn::Module {
          static auto& of(torch::nn::Module& m) { return m.*(&Open::parameters_); }
        };
        Open::of(*second->b)["weight"] = first->a->weight;
      }
      torch::Tensor forward(torch::Tensor x) { return second->forward(first->forward(x)); }
    };
    class Tied : public torch::nn::ModuleHolder<Module<TiedImpl>> {
     public:
      using torch::nn::ModuleHolder<Module<TiedImpl>>::ModuleHolder;
    };
    const auto make = [] {
      std::lock_guard lock(generator_mutex());
      torch::manual_seed(5);
      return Tied(std::make_shared<Module<TiedImpl>>());
    };
    Tied tied = make(), plain = make(), apart = make();
    Options options;
    options.mesh = world.mesh();
    fully_shard(tied, options);
    const torch::Tensor x = torch::ones({3, 5});
    torch::optim::SGD ours(tied->parameters(), 0.1), theirs(plain->parameters(), 0.1);
    tied->forward(x).square().sum().backward();
    plain->forward(x).square().sum().backward();
    // The registry lists a tied parameter twice; stepping it twice is the plain module's behaviour
    // too.
    ours.step();
    theirs.step();
    {
      SummonFullParams full(tied);
      RANK_CHECK(tied->first->a->weight.is_same(tied->second->b->weight));
      RANK_CHECK(torch::allclose(tied->first->a->weight, plain->first->a->weight, 1e-5, 1e-6));
    }
    fully_shard(apart->first, options);
    RANK_CHECK(has(message_of([&] { fully_shard(apart->second, options); }), "tied"));
  });
}

TEST_CASE("parameters smaller than the world - empty ones and scalars", "[runtime][small]") {
  struct TinyImpl : torch::nn::Module {
    torch::Tensor one, none, scalar, row;
    TinyImpl() {
      one = register_parameter("one", torch::ones({1}));
      none = register_parameter("none", torch::ones({0, 3}));
      scalar = register_parameter("scalar", torch::tensor(2.0));
      row = register_parameter("row", torch::ones({2, 3}));
    }
    torch::Tensor forward(torch::Tensor x) {
      return (x * one * scalar + row.sum() + none.sum()).sum();
    }
  };
  class Tiny : public torch::nn::ModuleHolder<Module<TinyImpl>> {
   public:
    using torch::nn::ModuleHolder<Module<TinyImpl>>::ModuleHolder;
  };
  run_threads(8, [](World& world) {
    Tiny tiny, plain;
    Options options;
    options.mesh = world.mesh();
    fully_shard(tiny, options);
    torch::optim::AdamW ours(tiny->parameters(), 0.1), theirs(plain->parameters(), 0.1);
    for (int step = 0; step < 3; ++step) {
      ours.zero_grad();
      theirs.zero_grad();
      tiny->forward(torch::ones({2})).backward();
      plain->forward(torch::ones({2})).backward();
      clip_grad_norm_(tiny, 1.0);
      torch::nn::utils::clip_grad_norm_(plain->parameters(), 1.0);
      ours.step();
      theirs.step();
    }
    SummonFullParams full(tiny);
    const auto want = plain->named_parameters();
    for (auto& param : tiny->named_parameters())
      RANK_CHECK(torch::allclose(param.value(), want[param.key()], 1e-5, 1e-6), param.key());
  });
}

TEST_CASE("what cannot be is refused by name", "[runtime][refuse]") {
  run_threads(2, [](World& world) {
    const auto with = [&](auto change) {
      Options options;
      options.mesh = world.mesh();
      change(options);
      Net net = make_net();
      return message_of([&] { fully_shard(net, options); });
    };
    RANK_CHECK(has(with([&](Options& o) { o.process_group = world.communicator(); }),
                   "exclude each other"));
    RANK_CHECK(
        has(with([&](Options& o) { o.strategy = ShardingStrategy::kHybridShard; }), "2 dims"));
    RANK_CHECK(has(with([&](Options& o) { o.reshard_after_forward = 7; }), "7"));
    Net net = make_net();
    Options options;
    options.mesh = world.mesh();
    RANK_CHECK(
        has(message_of([&] { fully_shard(net->head.ptr(), options); }), "torch::nn::LinearImpl"));
    fully_shard(net, options);
    RANK_CHECK(has(message_of([&] { fully_shard(net, options); }), "already"));
    RANK_CHECK(has(message_of([&] { net->to(torch::kDouble); }), "shard"));
    RANK_CHECK(has(message_of([&] { net->clone(); }), "clone"));
    torch::optim::LBFGS lbfgs(net->parameters());
    RANK_CHECK(has(message_of([&] { check_optimizer(lbfgs, net); }), "L-BFGS"));
  });
}

TEST_CASE("without a mesh one process trains alone - and a job of several is refused",
          "[runtime][refuse]") {
  const std::vector<double> plain = plain_losses();
  Net net = make_net();
  shard(net, {});
  CHECK(near(losses_of(net, make_data(), nullptr), plain));
  setenv("WORLD_SIZE", "4", 1);
  Net other = make_net();
  CHECK(has(message_of([&] { fully_shard(other, {}); }), "WORLD_SIZE"));
  unsetenv("WORLD_SIZE");
}

}  // namespace runtime_strategy_test
