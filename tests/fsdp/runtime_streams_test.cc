// Streams whose work runs late find waits that are missing: training under them must give bit for
// bit what it gives when all work runs at once.
#include <chrono>
#include <thread>

#include "fsdp_core/runtime/root.h"
#include "fsdp_core/stream/stream.h"
#include "tests/fsdp/models.h"
#include "tests/fsdp/strategies.h"
#include "tests/fsdp/torch_and_catch.h"

namespace runtime_streams_test {

using namespace tessera::fsdp;
using namespace tessera::fsdp::test;

namespace {

struct Trained {
  std::vector<double> losses;
  std::vector<torch::Tensor> params;
};

Trained train(World& world, const Data& data, Options options,
              std::shared_ptr<StreamFactory> streams) {
  tessera::fsdp::detail::Root::use_streams(std::move(streams));
  Net net = make_net();
  if (!options.mesh) options.mesh = world.mesh();
  shard(net, options);
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(1e-2));
  const Data mine = part_of(data, world.rank(), world.size());
  Trained out;
  const auto comm = world.communicator();
  for (int step = 0; step < 4; ++step) {
    if (step == 2) {  // accumulates without synchronisation first
      const NoSync no_sync(net);
      torch::mse_loss(net->forward(mine.x), mine.y).backward();
    }
    {
      const torch::NoGradGuard evaluation;
      net->forward(mine.x);
    }
    const torch::Tensor loss = torch::mse_loss(net->forward(mine.x), mine.y);
    loss.backward();
    clip_grad_norm_(net, 0.5);
    optimizer.step();
    optimizer.zero_grad();
    out.losses.push_back(mean_loss(loss, comm.get()));
  }
  {
    const SummonFullParams full(net);
    for (const auto& param : net->named_parameters())
      out.params.push_back(param.value().detach().clone());
  }
  tessera::fsdp::detail::Root::use_streams(nullptr);
  return out;
}

std::vector<Trained> train_all(int ranks, const Options& options, bool hybrid, bool late,
                               std::uint64_t seed) {
  const Data data = make_data();
  std::vector<Trained> all(static_cast<std::size_t>(ranks));
  run_threads(ranks, [&](World& world) {
    Options mine = options;
    if (hybrid) mine.mesh = DeviceMesh(world, {2, ranks / 2}, {"replicate", "shard"});
    all[static_cast<std::size_t>(world.rank())] =
        train(world, data, mine,
              late ? simulated_streams(seed + static_cast<std::uint64_t>(world.rank()) * 100, 1500)
                   : nullptr);
  });
  return all;
}

void check_same(const Options& options, int ranks, bool hybrid, std::uint64_t seed) {
  const std::vector<Trained> now = train_all(ranks, options, hybrid, false, 0);
  const std::vector<Trained> late = train_all(ranks, options, hybrid, true, seed);
  for (std::size_t r = 0; r < now.size(); ++r) {
    CHECK(now[r].losses == late[r].losses);
    REQUIRE(now[r].params.size() == late[r].params.size());
    for (std::size_t p = 0; p < now[r].params.size(); ++p)
      CHECK(torch::equal(now[r].params[p], late[r].params[p]));
  }
}

}  // namespace

TEST_CASE("late work is met unfinished unless it was waited for", "[streams]") {
  const auto streams = simulated_streams(3, 1);
  const auto compute = streams->compute(), side = streams->make("side", false);
  std::atomic<int> value = 0;
  side->run([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    value = 1;
  });
  CHECK(value == 0);
  compute->wait_for(*side);
  CHECK(value == 1);
}

TEST_CASE("work of one communicator runs in the order given whatever its streams", "[streams]") {
  const auto comm = single_communicator();
  const auto streams = simulated_streams(GENERATE(1U, 2U, 3U), 2000);
  const auto compute = streams->compute();
  const auto first = streams->make("first", false), second = streams->make("second", false);
  std::vector<int> order;  // guarded by the turns
  for (int i = 0; i < 20; ++i)
    (i % 3 == 0 ? first : second)->run([&order, i] { order.push_back(i); }, comm.get());
  compute->run([&order] { order.push_back(20); }, comm.get());
  REQUIRE(order.size() == 21);
  for (int i = 0; i <= 20; ++i) CHECK(order[static_cast<std::size_t>(i)] == i);
}

TEST_CASE("a failure in late work is thrown where it is waited for and turns still pass",
          "[streams]") {
  const auto comm = single_communicator();
  const auto streams = simulated_streams(5, 100);
  const auto compute = streams->compute();
  const auto bad = streams->make("bad", false), good = streams->make("good", false);
  bad->run([] { throw std::runtime_error("lost"); }, comm.get());
  bool skipped = true, ran = false;
  bad->run([&] { skipped = false; }, comm.get());
  good->run([&] { ran = true; }, comm.get());
  CHECK_THROWS_WITH(compute->wait_for(*bad), "lost");
  compute->wait_for(*good);
  CHECK(skipped);
  CHECK(ran);
}

TEST_CASE("training under late streams is bit-equal", "[streams][runtime]") {
  Options options;
  options.layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  options.backward_prefetch =
      GENERATE(BackwardPrefetch::kPre, BackwardPrefetch::kPost, BackwardPrefetch::kNone);
  options.forward_prefetch = GENERATE(true, false);
  options.limit_all_gathers = options.forward_prefetch;
  check_same(options, 2, false, 11);
}

TEST_CASE("training under late streams is bit-equal for every strategy", "[streams][runtime]") {
  Options options;
  const bool hybrid = GENERATE(true, false);
  options.strategy = hybrid ? GENERATE(from_range(hybrid_strategies()))
                            : GENERATE(ShardingStrategy::kShardGradOp, ShardingStrategy::kNoShard);
  options.unshard_stream_per_group = GENERATE(true, false);
  options.find_unused_parameters = options.unshard_stream_per_group;
  options.max_prefetch_count = 3;
  options.forward_prefetch = true;
  check_same(options, 4, hybrid, 23);
}

TEST_CASE("training under late streams is bit-equal with low precision", "[streams][runtime]") {
  Options options;
  options.mixed_precision.param_dtype = torch::kBFloat16;
  options.mixed_precision.reduce_dtype = GENERATE(torch::kFloat, torch::kBFloat16);
  check_same(options, 3, false, 31);
}

}  // namespace runtime_streams_test
