// Groups that the user made instead of a mesh: the same training, alone and with replicas, and
// after a failure one fresh group for all units, the world and the next model.
#include <fmt/format.h>

#include "fsdp_core/runtime/unit_groups.h"
#include "tests/fsdp/beside_plain.h"
#include "tests/fsdp/strategies.h"
#include "tests/fsdp/torch_and_catch.h"

namespace runtime_user_groups_test {

using namespace tessera::fsdp;
using namespace tessera::fsdp::test;

namespace {

constexpr int kSteps = 4;

std::vector<double> train(Net& net, const Data& data, Communicator* comm) {
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(1e-2));
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const torch::Tensor loss = torch::mse_loss(net->forward(data.x), data.y);
    loss.backward();
    optimizer.step();
    losses.push_back(mean_loss(loss, comm));
  }
  return losses;
}

std::vector<torch::Tensor> shards_of(Net& net) {
  std::vector<torch::Tensor> out;
  for (const torch::Tensor& shard : net->parameters()) out.push_back(shard.detach().clone());
  return out;
}

bool equal(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  return std::ranges::equal(a, b, [](const auto& x, const auto& y) { return torch::equal(x, y); });
}

/// Without a mesh. Hybrid: pairs shard, the pairs' first and second members are replicas.
Options by_groups(const World& world, ShardingStrategy strategy) {
  Options options;
  options.strategy = strategy;
  if (!strategy_of(strategy).hybrid()) {
    options.process_group = world.communicator();
    return options;
  }
  const int pair = world.rank() / 2 * 2;
  options.process_group = world.group({pair, pair + 1});
  std::vector<int> replicas;
  for (int rank = world.rank() % 2; rank < world.size(); rank += 2) replicas.push_back(rank);
  options.replicate_group = world.group(replicas);
  return options;
}

Options by_mesh(const World& world, ShardingStrategy strategy) {
  Options options;
  options.strategy = strategy;
  options.mesh = strategy_of(strategy).hybrid()
                     ? DeviceMesh(world, {world.size() / 2, 2}, {"replicate", "shard"})
                     : world.mesh();
  return options;
}

}  // namespace

TEST_CASE("groups of the user's train as a mesh of the same ranks", "[runtime][groups]") {
  Net plain = make_net();
  const std::vector<double> theirs = train(plain, make_data(), nullptr);
  const auto strategy = GENERATE(from_range(all_strategies()));
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  const int size = GENERATE(4, 6);
  CAPTURE(strategy_name(strategy), static_cast<int>(layout), size);
  run_threads(size, [&](World& world) {
    const Data mine = part_of(make_data(), world.rank(), world.size());
    std::vector<torch::Tensor> first;
    for (Options options : {by_mesh(world, strategy), by_groups(world, strategy)}) {
      options.layout = layout;
      Net net = make_net();
      shard(net, options);
      const std::vector<double> ours = train(net, mine, world.communicator().get());
      for (std::size_t step = 0; step < ours.size(); ++step)
        RANK_CHECK(ours[step] == Approx(theirs[step]).epsilon(1e-6), std::to_string(step));
      if (first.empty())
        first = shards_of(net);
      else
        RANK_CHECK(equal(first, shards_of(net)));
    }
  });
}

TEST_CASE("after a failure all units of the user's groups go on with one fresh group",
          "[runtime][groups]") {
  const std::string backend = GENERATE("threads", "gloo");
  const auto strategy = GENERATE(ShardingStrategy::kFullShard, ShardingStrategy::kHybridShard);
  const int resets_before = GENERATE(0, 1);
  CAPTURE(backend, strategy_name(strategy), resets_before);
  WorldOptions world_options;
  world_options.backend = backend;
  world_options.timeout = std::chrono::seconds(20);
  run_threads(
      4,
      [&](World& world) {
        for (int i = 0; i < resets_before; ++i) world.reset();
        const Data mine = part_of(make_data(), world.rank(), world.size());
        Net one = make_net(), two = make_net(2);
        shard(one, by_groups(world, strategy));
        shard(two, by_groups(world, strategy));
        backward(one, mine);
        const auto clear = [](Net& net) {
          for (torch::Tensor& shard : net->parameters()) shard.mutable_grad().reset();
        };
        for (int failure = 0; failure < 2; ++failure) {
          clear(one);
          const auto before = shards_of(one);
          const std::string message = message_of([&] {
            const torch::Tensor loss = torch::mse_loss(one->forward(mine.x), mine.y);
            if (world.rank() == 1)
              loss.register_hook([](const torch::Tensor&) { throw std::runtime_error("thrown"); });
            loss.backward();
          });
          RANK_CHECK(!message.empty());
          world.reset();
          reset(one);
          reset(two);
          RANK_CHECK(equal(before, shards_of(one)));
          for (Net* net : {&one, &two}) {
            backward(*net, mine);
            for (const torch::Tensor& shard : (*net)->parameters())
              RANK_CHECK(shard.grad().defined());
          }
          // The world's own group of the same ranks, too.
          torch::Tensor ones = torch::ones({3});
          world.communicator()->all_reduce(ones, Reduce::kSum, {});
          RANK_CHECK(ones[0].item<float>() == 4);
          clear(two);
        }
      },
      world_options);
}

}  // namespace runtime_user_groups_test
