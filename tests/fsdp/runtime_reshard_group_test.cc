// reshard_after_forward = k: between forward and backward a unit's parameters lie over k ranks,
// from which backward gathers them.
#include "tests/fsdp/models.h"
#include "tests/fsdp/torch_and_catch.h"

namespace runtime_reshard_group_test {

using namespace tessera::fsdp;
using namespace tessera::fsdp::test;

namespace {

/// Losses of four steps; the counts of the last are those of the two groups.
struct Trained {
  std::vector<double> losses;
  CommCounts all, part;
};

Trained train(World& world, Options options, int size) {
  Net net = make_net();
  options.mesh = world.mesh();
  options.reshard_after_forward = size;
  shard(net, options);
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(1e-2));
  const Data mine = part_of(make_data(), world.rank(), world.size());
  const auto comm = world.communicator();
  const int first = world.rank() / size * size;
  std::vector<int> neighbours;
  for (int rank = first; rank < first + size; ++rank) neighbours.push_back(rank);
  const auto part = world.group(neighbours);
  Trained out;
  for (int step = 0; step < 4; ++step) {
    {
      const torch::NoGradGuard evaluation;  // keeps no parts
      net->forward(mine.x);
    }
    optimizer.zero_grad();
    comm->reset_counts();
    part->reset_counts();
    const torch::Tensor loss = torch::mse_loss(net->forward(mine.x), mine.y);
    loss.backward();
    out.all = comm->counts();
    out.part = part->counts();
    optimizer.step();
    out.losses.push_back(mean_loss(loss, comm.get()));
  }
  return out;
}

std::vector<double> train_plain() {
  Net net = make_net();
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(1e-2));
  const Data data = make_data();
  std::vector<double> losses;
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    const torch::Tensor loss = torch::mse_loss(net->forward(data.x), data.y);
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

constexpr int kUnits = 4;  // three blocks and the root

}  // namespace

TEST_CASE("backward gathers from the ranks that kept parts and trains as the plain module",
          "[runtime][reshard-group]") {
  const std::vector<double> plain = train_plain();
  const auto [world, size] = GENERATE(table<int, int>({{4, 2}, {6, 3}, {6, 2}, {8, 4}}));
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  const auto prefetch = GENERATE(BackwardPrefetch::kPre, BackwardPrefetch::kNone);
  CAPTURE(world, size, static_cast<int>(layout));
  std::vector<Trained> all(static_cast<std::size_t>(world));
  const int part = size;
  run_threads(world, [&, part](World& w) {
    Options options;
    options.layout = layout;
    options.backward_prefetch = prefetch;
    all[static_cast<std::size_t>(w.rank())] = train(w, options, part);
  });
  for (const Trained& ours : all) {
    for (std::size_t step = 0; step < plain.size(); ++step)
      CHECK(ours.losses[step] == Approx(plain[step]).epsilon(1e-6));
    CHECK(ours.all.all_gathers == kUnits);
    CHECK(ours.all.reduce_scatters == kUnits);
    CHECK(ours.part.all_gathers == kUnits);
  }
}

TEST_CASE("parts that an optimizer step made old are not used", "[runtime][reshard-group]") {
  run_threads(4, [](World& world) {
    Options options;
    options.mesh = world.mesh();
    options.reshard_after_forward = 2;
    Net net = make_net();
    shard(net, options);
    const Data data = make_data();
    const torch::Tensor loss = torch::mse_loss(net->forward(data.x), data.y);
    {
      const torch::NoGradGuard no_grad;
      for (torch::Tensor& shard : net->parameters()) shard.mul_(1.0);
    }
    const auto comm = world.communicator();
    comm->reset_counts();
    loss.backward();
    RANK_CHECK(comm->counts().all_gathers == kUnits);
  });
}

TEST_CASE("a number of ranks that does not divide the shard group is refused",
          "[runtime][reshard-group]") {
  run_threads(4, [](World& world) {
    Options options;
    options.mesh = world.mesh();
    options.reshard_after_forward = 3;
    Net net = make_net();
    RANK_CHECK(message_of([&] {
                 fully_shard(net, options);
               }).find("4 shards are not a multiple of it") != std::string::npos);
    options.mesh.reset();
    options.process_group = world.communicator();
    options.reshard_after_forward = 2;
    RANK_CHECK(message_of([&] { fully_shard(net, options); }).find("needs options.mesh") !=
               std::string::npos);
  });
}

}  // namespace runtime_reshard_group_test
