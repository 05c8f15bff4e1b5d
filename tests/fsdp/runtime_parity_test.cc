// A sharded module trains as the plain one: same losses, same parameters.
#include "tests/fsdp/models.h"
#include "tests/fsdp/torch_and_catch.h"

namespace runtime_parity_test {

using namespace tessera::fsdp;
using namespace tessera::fsdp::test;

namespace {

constexpr int kSteps = 6;

struct Trained {
  std::vector<double> losses;
  std::vector<torch::Tensor> params;
};

Trained train_plain(const Data& data) {
  Net net = make_net();
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(1e-2));
  Trained out;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    auto loss = torch::mse_loss(net->forward(data.x), data.y);
    loss.backward();
    optimizer.step();
    out.losses.push_back(loss.item<double>());
  }
  for (const auto& param : net->named_parameters())
    out.params.push_back(param.value().detach().clone());
  return out;
}

Trained train_sharded(World& world, const Data& data, Options options) {
  Net net = make_net();
  options.mesh = world.mesh();
  shard(net, options);
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(1e-2));
  const Data mine = part_of(data, world.rank(), world.size());
  Trained out;
  auto comm = world.communicator();
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    auto loss = torch::mse_loss(net->forward(mine.x), mine.y);
    loss.backward();
    optimizer.step();
    out.losses.push_back(mean_loss(loss, comm.get()));
  }
  SummonFullParams full(net);
  for (const auto& param : net->named_parameters())
    out.params.push_back(param.value().detach().clone());
  return out;
}

void check_equal(const Trained& ours, const Trained& plain) {
  REQUIRE(ours.losses.size() == plain.losses.size());
  for (std::size_t i = 0; i < plain.losses.size(); ++i)
    CHECK(ours.losses[i] == Approx(plain.losses[i]).epsilon(1e-6));
  REQUIRE(ours.params.size() == plain.params.size());
  for (std::size_t i = 0; i < plain.params.size(); ++i) {
    CHECK(ours.params[i].sizes() == plain.params[i].sizes());
    CHECK((ours.params[i] - plain.params[i]).abs().max().item<double>() < 2e-6);
  }
}

}  // namespace

TEST_CASE("every strategy - layout and world size trains as the plain module",
          "[runtime][parity]") {
  const Data data = make_data();
  const Trained plain = train_plain(data);
  const auto strategy = GENERATE(ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp,
                                 ShardingStrategy::kNoShard);
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  const int world = GENERATE(1, 2, 3, 4, 8);
  CAPTURE(static_cast<int>(strategy), static_cast<int>(layout), world);
  std::vector<Trained> all(static_cast<std::size_t>(world));
  run_threads(world, [&](World& w) {
    Options options;
    options.strategy = strategy;
    options.layout = layout;
    all[static_cast<std::size_t>(w.rank())] = train_sharded(w, data, options);
  });
  for (const Trained& ours : all) check_equal(ours, plain);
}

TEST_CASE("the same over Gloo's sockets", "[runtime][parity]") {
  const Data data = make_data();
  const Trained plain = train_plain(data);
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  const int world = GENERATE(2, 3);
  CAPTURE(static_cast<int>(layout), world);
  std::vector<Trained> all(static_cast<std::size_t>(world));
  WorldOptions gloo;
  gloo.backend = "gloo";
  run_threads(
      world,
      [&](World& w) {
        Options options;
        options.layout = layout;
        all[static_cast<std::size_t>(w.rank())] = train_sharded(w, data, options);
      },
      gloo);
  for (const Trained& ours : all) check_equal(ours, plain);
}

}  // namespace runtime_parity_test
