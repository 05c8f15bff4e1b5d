// Which collectives a step issues, in which order, counted and in bytes: nothing more than the
// algorithm needs.
#include <fmt/format.h>

#include "tests/fsdp/models.h"
#include "tests/fsdp/torch_and_catch.h"

namespace runtime_trace_test {

using namespace tessera::fsdp;
using namespace tessera::fsdp::test;

namespace {

/// "AG(u1)", "RS(root)", ... as this rank issued them.
class Trace {
 public:
  explicit Trace(Communicator& comm) : comm_(comm) {
    comm.observe([this](const CommRecord& record) {
      if (record.phase == CommPhase::kCheck || record.phase == CommPhase::kSetup) return;
      const char* op = record.op == CommOp::kAllGather       ? "AG"
                       : record.op == CommOp::kReduceScatter ? "RS"
                       : record.op == CommOp::kAllReduce     ? "AR"
                                                             : "?";
      text_ += fmt::format("{}{}({})", text_.empty() ? "" : " ", op,
                           record.unit.empty() ? "root" : record.unit);
    });
  }
  ~Trace() { comm_.observe({}); }
  std::string take() { return std::exchange(text_, {}); }

 private:
  Communicator& comm_;
  std::string text_;
};

struct Step {
  std::string forward, backward;
};

/// A net of two blocks, third step.
Step third_step(const Options& common, bool sync = true) {
  Step out;
  run_threads(2, [&](World& world) {
    Net net = make_net(2);
    Options options = common;
    options.mesh = world.mesh();
    shard(net, options);
    torch::optim::SGD optimizer(net->parameters(), 0.01);
    const Data data = part_of(make_data(), world.rank(), world.size());
    Trace trace(*world.communicator());
    for (int step = 0; step < 3; ++step) {
      trace.take();
      std::optional<NoSync> no_sync;
      if (!sync) no_sync.emplace(net);
      auto loss = torch::mse_loss(net->forward(data.x), data.y);
      const std::string forward = trace.take();
      loss.backward();
      const std::string backward = trace.take();
      if (world.rank() == 0) out = {forward, backward};
      if (sync) optimizer.step();
    }
  });
  return out;
}

}  // namespace

TEST_CASE("full shard gathers in forward order - again in backward - the root once",
          "[runtime][trace]") {
  Options options;
  SECTION("prefetch before") {
    options.backward_prefetch = BackwardPrefetch::kPre;
    const Step step = third_step(options);
    CHECK(step.forward == "AG(root) AG(blocks0) AG(blocks1)");
    CHECK(step.backward == "AG(blocks1) AG(blocks0) RS(blocks1) RS(blocks0) RS(root)");
  }
  SECTION("prefetch after") {
    options.backward_prefetch = BackwardPrefetch::kPost;
    const Step step = third_step(options);
    CHECK(step.backward == "AG(blocks1) AG(blocks0) RS(blocks1) RS(blocks0) RS(root)");
  }
  SECTION("no prefetch") {
    options.backward_prefetch = BackwardPrefetch::kNone;
    const Step step = third_step(options);
    CHECK(step.backward == "AG(blocks1) RS(blocks1) AG(blocks0) RS(blocks0) RS(root)");
  }
  SECTION("forward prefetch keeps the order") {
    options.forward_prefetch = true;
    const Step step = third_step(options);
    CHECK(step.forward == "AG(root) AG(blocks0) AG(blocks1)");
    CHECK(step.backward == "AG(blocks1) AG(blocks0) RS(blocks1) RS(blocks0) RS(root)");
  }
  SECTION("the root freed too") {
    options.reshard_after_forward = true;
    const Step step = third_step(options);
    CHECK(step.backward == "AG(root) AG(blocks1) AG(blocks0) RS(blocks1) RS(blocks0) RS(root)");
  }
}

TEST_CASE("shard grad op gathers once a step", "[runtime][trace]") {
  Options options;
  options.strategy = ShardingStrategy::kShardGradOp;
  const Step step = third_step(options);
  CHECK(step.forward == "AG(root) AG(blocks0) AG(blocks1)");
  CHECK(step.backward == "RS(blocks1) RS(blocks0) RS(root)");
}

TEST_CASE("no shard reduces once a unit and gathers nothing", "[runtime][trace]") {
  Options options;
  options.strategy = ShardingStrategy::kNoShard;
  const Step step = third_step(options);
  CHECK(step.forward == "");
  CHECK(step.backward == "AR(blocks1) AR(blocks0) AR(root)");
}

TEST_CASE("without synchronisation nothing is reduced", "[runtime][trace]") {
  Options options;
  SECTION("full shard gathers as ever") {
    const Step step = third_step(options, false);
    CHECK(step.forward == "AG(root) AG(blocks0) AG(blocks1)");
    CHECK(step.backward == "AG(blocks1) AG(blocks0)");
  }
  SECTION("shard grad op gathers no more after the first backward") {
    options.strategy = ShardingStrategy::kShardGradOp;
    const Step step = third_step(options, false);
    CHECK(step.forward == "");
    CHECK(step.backward == "");
  }
}

TEST_CASE("bytes on the wire are exactly those of the padded parameters", "[runtime][trace]") {
  const bool freed = GENERATE(false, true);
  const int world_size = GENERATE(2, 3, 5);
  CAPTURE(freed, world_size);
  run_threads(world_size, [&](World& world) {
    Net net = make_net(2);
    Options options;
    options.mesh = world.mesh();
    if (freed) options.reshard_after_forward = true;
    shard(net, options);
    const Data data = part_of(make_data(30), world.rank(), world_size);
    auto padded = [&](std::int64_t numel) {
      return (numel + world_size - 1) / world_size * world_size;
    };
    const std::int64_t block = padded(19 * 33 + 33 + 33 * 19 + 19),
                       root = padded(19 * 19 + 19 + 19 * 5 + 5);
    for (int step = 0; step < 3; ++step) {
      world.communicator()->reset_counts();
      torch::mse_loss(net->forward(data.x), data.y).backward();
      const CommCounts counts = world.communicator()->counts();
      const std::int64_t psi = 2 * block + root;
      const std::int64_t elements = freed ? 3 * psi : 3 * psi - root;
      RANK_CHECK(counts.wire_bytes == elements * 4 / world_size * (world_size - 1));
      RANK_CHECK(counts.all_gathers == (freed ? 6 : 5));
      RANK_CHECK(counts.reduce_scatters == 3);
      RANK_CHECK(counts.all_reduces == 0);
    }
  });
}

TEST_CASE("an evaluation gathers each unit once and leaves everything sharded",
          "[runtime][trace]") {
  const auto strategy = GENERATE(ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp);
  const bool prefetch = GENERATE(false, true);
  CAPTURE(static_cast<int>(strategy), prefetch);
  run_threads(2, [&](World& world) {
    Net net = make_net(2), plain = make_net(2);
    Options options;
    options.mesh = world.mesh();
    options.strategy = strategy;
    options.forward_prefetch = prefetch;
    shard(net, options);
    torch::optim::SGD optimizer(net->parameters(), 0.1), reference(plain->parameters(), 0.1);
    const Data data = make_data();
    auto train = [&] {
      optimizer.zero_grad();
      reference.zero_grad();
      torch::mse_loss(net->forward(data.x), data.y).backward();
      torch::mse_loss(plain->forward(data.x), data.y).backward();
      optimizer.step();
      reference.step();
    };
    train();
    for (int eval = 0; eval < 3; ++eval) {
      torch::NoGradGuard no_grad;
      world.communicator()->reset_counts();
      const auto ours = net->forward(data.x);
      RANK_CHECK(world.communicator()->counts().all_gathers == 3);
      RANK_CHECK(torch::allclose(ours, plain->forward(data.x), 1e-5, 1e-6));
      for (const auto& [name, state] : unit_states(net))
        RANK_CHECK(state == "(Sharded, Idle, None)", name + state);
    }
    train();
    torch::NoGradGuard no_grad;
    RANK_CHECK(torch::allclose(net->forward(data.x), plain->forward(data.x), 1e-5, 1e-6));
  });
}

}  // namespace runtime_trace_test
