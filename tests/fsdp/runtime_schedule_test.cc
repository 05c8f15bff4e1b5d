// When collectives are issued beside compute, not only in which order; and the odd ways to run
// units: gathered by hand, skipped, inside checkpoints, evaluated alone, returning what an inner
// one returned.
#include <fmt/format.h>

#include "fsdp_core/runtime/root.h"
#include "tests/fsdp/full_gradients.h"
#include "tests/fsdp/line_model.h"
#include "tests/fsdp/torch_and_catch.h"

namespace runtime_schedule_test {

using namespace tessera::fsdp;
using namespace tessera::fsdp::test;

namespace {

/// Notes collectives beside compute.
struct Noting {
  Noting(std::vector<std::shared_ptr<Communicator>> comms_, const Log& log)
      : comms(std::move(comms_)) {
    for (const auto& comm : comms)
      comm->observe([log](const CommRecord& record) {
        if (record.phase == CommPhase::kCheck || record.phase == CommPhase::kSetup) return;
        const char* op = record.op == CommOp::kAllGather       ? "AG"
                         : record.op == CommOp::kReduceScatter ? "RS"
                                                               : "AR";
        note(log, fmt::format("{}({})", op, record.unit.empty() ? "root" : record.unit));
      });
  }
  ~Noting() {
    for (const auto& comm : comms) comm->observe({});
  }
  std::vector<std::shared_ptr<Communicator>> comms;
};

/// What the third step does on rank 0, "|" between forward and backward.
std::string third_step(const Options& common, bool hybrid = false) {
  std::string out;
  run_threads(hybrid ? 4 : 2, [&](World& world) {
    const auto log = std::make_shared<std::string>();
    Line net = make_line(log);
    Options options = common;
    options.mesh = hybrid ? DeviceMesh(world, {2, 2}, {"replicate", "shard"}) : world.mesh();
    shard_line(net, options);
    for (int step = 0; step < 2; ++step) net->forward(input_of(world.rank())).sum().backward();
    std::vector<std::shared_ptr<Communicator>> comms = {options.mesh->group(0)};
    if (hybrid) comms.push_back(options.mesh->group(1));
    const Noting noting(comms, log);
    log->clear();
    const torch::Tensor y = net->forward(input_of(world.rank()));
    note(log, "|");
    y.sum().backward();
    if (world.rank() == 0) out = *log;
  });
  return out;
}

}  // namespace

TEST_CASE("gathers ahead are issued before the compute they hide behind", "[runtime][schedule]") {
  Options options;
  CHECK(third_step(options) ==
        "AG(root) F(root) AG(b0) F(b0) AG(b1) F(b1) | "
        "AG(b1) AG(b0) B(b1) RS(b1) B(b0) RS(b0) B(root) RS(root)");
  options.forward_prefetch = true;
  options.backward_prefetch = BackwardPrefetch::kPost;
  CHECK(third_step(options) ==
        "AG(root) AG(b0) F(root) AG(b1) F(b0) F(b1) | "
        "AG(b1) B(b1) AG(b0) RS(b1) B(b0) RS(b0) B(root) RS(root)");
  options.forward_prefetch = false;
  options.backward_prefetch = BackwardPrefetch::kNone;
  CHECK(third_step(options) ==
        "AG(root) F(root) AG(b0) F(b0) AG(b1) F(b1) | "
        "AG(b1) B(b1) RS(b1) AG(b0) B(b0) RS(b0) B(root) RS(root)");
}

TEST_CASE("hybrid strategies reduce over the replicas right after the shards",
          "[runtime][schedule]") {
  Options options;
  options.strategy = ShardingStrategy::kHybridShard;
  CHECK(third_step(options, true) ==
        "AG(root) F(root) AG(b0) F(b0) AG(b1) F(b1) | "
        "AG(b1) AG(b0) B(b1) RS(b1) AR(b1) B(b0) RS(b0) AR(b0) B(root) RS(root) AR(root)");
  options.strategy = ShardingStrategy::kHybridShardZero2;
  CHECK(third_step(options, true) ==
        "AG(root) F(root) AG(b0) F(b0) AG(b1) F(b1) | "
        "B(b1) RS(b1) AR(b1) B(b0) RS(b0) AR(b0) B(root) RS(root) AR(root)");
}

TEST_CASE("a unit gathered by hand before its forward is gathered once", "[runtime][schedule]") {
  const bool prefetch = GENERATE(false, true);
  run_threads(2, [&](World& world) {
    Line net = make_line();
    Options options;
    options.mesh = world.mesh();
    options.forward_prefetch = prefetch;
    shard_line(net, options);
    net->forward(input_of(0)).sum().backward();
    const torch::NoGradGuard evaluation;
    unshard(net->stages[1]);
    unshard(net->stages[1]);
    world.communicator()->reset_counts();
    net->forward(input_of(0));
    RANK_CHECK(world.communicator()->counts().all_gathers == 2);
  });
}

TEST_CASE("a unit that every second step skips trains as in the plain module",
          "[runtime][schedule]") {
  const auto strategy = GENERATE(ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp);
  const int ahead = GENERATE(1, 3);
  run_threads(2, [&](World& world) {
    Line net = make_line(), plain = make_line();
    Options options;
    options.mesh = world.mesh();
    options.strategy = strategy;
    options.forward_prefetch = true;
    options.max_prefetch_count = ahead;
    options.find_unused_parameters = true;
    shard_line(net, options);
    torch::optim::AdamW optimizer(net->parameters(), 1e-2), reference(plain->parameters(), 1e-2);
    for (int step = 0; step < 6; ++step) {
      optimizer.zero_grad();
      reference.zero_grad();
      net->skipped = plain->skipped = step % 2 == 1 ? 0 : 99;
      const torch::Tensor ours = net->forward(input_of(0)), theirs = plain->forward(input_of(0));
      RANK_CHECK(torch::allclose(ours, theirs, 1e-5, 1e-6), fmt::format("step {}", step));
      ours.square().sum().backward();
      theirs.square().sum().backward();
      optimizer.step();
      reference.step();
      for (const auto& [name, state] : unit_states(net))
        RANK_CHECK(state == "(Sharded, Idle, None)", name + state);
    }
  });
}

TEST_CASE("activation checkpoints inside and around units train as the plain module",
          "[runtime][schedule][checkpoint]") {
  const bool inside = GENERATE(false, true), around = GENERATE(false, true);
  const auto strategy = GENERATE(ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp,
                                 ShardingStrategy::kNoShard);
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  if (!inside && !around) return;
  CAPTURE(inside, around, strategy_name(strategy));
  run_threads(2, [&](World& world) {
    Line net = make_line(), plain = make_line();
    Options options;
    options.mesh = world.mesh();
    options.strategy = strategy;
    options.layout = layout;
    net->outer_checkpoint = around;
    for (Stage& stage : net->stages) stage->inner_checkpoint = inside;
    shard_line(net, options);
    for (int pass = 0; pass < 3; ++pass) {
      for (auto& param : net->parameters()) param.mutable_grad().reset();
      for (auto& param : plain->parameters()) param.mutable_grad().reset();
      world.communicator()->reset_counts();
      // The stage twice in one pass: several graphs through one checkpointed unit.
      const auto run = [&](Line& n) {
        torch::Tensor x = input_of(0) * (pass + 1);
        for (int i = 0; i <= pass % 2; ++i) x = n->forward(x);
        x.square().sum().backward();
      };
      run(net);
      run(plain);
      const CommCounts counts = world.communicator()->counts();
      if (pass == 2 && strategy == ShardingStrategy::kFullShard)  // forward, and backward once
        RANK_CHECK(counts.all_gathers == 5, fmt::format("{} gathers", counts.all_gathers));
      if (strategy != ShardingStrategy::kNoShard)
        RANK_CHECK(counts.reduce_scatters == 3, fmt::format("{}", counts.reduce_scatters));
      check_full_gradients(net, plain, fmt::format("pass {}", pass));
      for (const auto& [name, state] : unit_states(net))
        RANK_CHECK(state == "(Sharded, Idle, None)", name + state);
    }
  });
}

TEST_CASE("a root without parameters of its own ends each backward once", "[runtime][schedule]") {
  run_threads(2, [](World& world) {
    Line net = make_line(nullptr, false), plain = make_line(nullptr, false);
    Options options;
    options.mesh = world.mesh();
    shard_line(net, options);
    for (int step = 0; step < 3; ++step) {
      for (auto& param : net->parameters()) param.mutable_grad().reset();
      for (auto& param : plain->parameters()) param.mutable_grad().reset();
      world.communicator()->reset_counts();
      net->forward(input_of(0)).sum().backward();
      plain->forward(input_of(0)).sum().backward();
      // The end of a backward compares orders, with one call.
      if (step > 0) RANK_CHECK(world.communicator()->counts().check_calls == 1);
      check_full_gradients(net, plain);
    }
  });
}

TEST_CASE("a unit evaluated alone and then inside a larger tree trains with it",
          "[runtime][schedule]") {
  run_threads(2, [](World& world) {
    Line net = make_line(), plain = make_line();
    Options options;
    options.mesh = world.mesh();
    shard_line(net, options);
    {
      const torch::NoGradGuard evaluation;
      RANK_CHECK(torch::allclose(net->stages[1]->forward(input_of(0)),
                                 plain->stages[1]->forward(input_of(0))));
    }
    net->forward(input_of(0)).sum().backward();
    plain->forward(input_of(0)).sum().backward();
    check_full_gradients(net, plain);
  });
}

TEST_CASE("an outer unit may return what an inner one returned", "[runtime][schedule]") {
  struct PassImpl : torch::nn::Module {
    PassImpl() { stage = register_module("stage", Stage("s", nullptr)); }
    torch::Tensor forward(torch::Tensor x) { return stage->forward(x); }
    Stage stage{nullptr};
  };
  run_threads(2, [](World& world) {
    const auto make = [] {
      const std::lock_guard lock(generator_mutex());
      torch::manual_seed(2);
      return Holder<PassImpl>();
    };
    Holder<PassImpl> net = make(), plain = make();
    Options options;
    options.mesh = world.mesh();
    fully_shard(net->stage, options);
    fully_shard(net, options);
    for (int step = 0; step < 2; ++step) {
      net->forward(input_of(0)).sum().backward();
      plain->forward(input_of(0)).sum().backward();
    }
    check_full_gradients(net, plain);
    RANK_CHECK(world.communicator()->counts().reduce_scatters == 2);
  });
}

TEST_CASE("streams belong to a tree and are shared inside it", "[runtime][streams]") {
  struct Counting final : StreamFactory {
    std::shared_ptr<StreamFactory> host = host_streams();
    std::vector<std::string> made;
    std::shared_ptr<Stream> compute() override { return host->compute(); }
    std::shared_ptr<Stream> make(std::string name, bool high_priority) override {
      made.push_back(name);
      return host->make(std::move(name), high_priority);
    }
  };
  const auto streams = std::make_shared<Counting>();
  tessera::fsdp::detail::Root::use_streams(streams);
  Line one = make_line(), other = make_line();
  const World world = fake_world(0, 4);
  Options options;
  options.mesh = world.mesh();
  shard_line(one, options);
  shard_line(other, options);
  one->forward(input_of(0)).sum().backward();
  CHECK(streams->made == std::vector<std::string>{"reduce", "gather"});
  other->forward(input_of(0)).sum().backward();
  CHECK(streams->made == std::vector<std::string>{"reduce", "gather", "reduce", "gather"});
  one->forward(input_of(0)).sum().backward();
  CHECK(streams->made.size() == 4);
  tessera::fsdp::detail::Root::use_streams(nullptr);
}

TEST_CASE("a frozen unit with an input that requires grad and is not used", "[runtime][schedule]") {
  struct TwoImpl : torch::nn::Module {
    TwoImpl() { linear = register_module("linear", torch::nn::Linear(kSize, kSize)); }
    torch::Tensor forward(torch::Tensor x, torch::Tensor) { return linear->forward(x); }
    torch::nn::Linear linear{nullptr};
  };
  struct OuterImpl : torch::nn::Module {
    OuterImpl() {
      first = register_module("first", Holder<torch::nn::LinearImpl>(kSize, kSize));
      frozen = register_module("frozen", Holder<TwoImpl>());
      for (torch::Tensor& param : frozen->parameters()) param.set_requires_grad(false);
    }
    torch::Tensor forward(torch::Tensor x) {
      const torch::Tensor h = first->forward(x);
      return frozen->forward(h, h * 2);
    }
    Holder<torch::nn::LinearImpl> first{nullptr};
    Holder<TwoImpl> frozen{nullptr};
  };
  run_threads(2, [](World& world) {
    const auto make = [] {
      const std::lock_guard lock(generator_mutex());
      torch::manual_seed(4);
      return Holder<OuterImpl>();
    };
    Holder<OuterImpl> net = make(), plain = make();
    Options options;
    options.mesh = world.mesh();
    fully_shard(net->first, options);
    fully_shard(net->frozen, options);
    fully_shard(net, options);
    for (int step = 0; step < 3; ++step) {
      net->forward(input_of(step)).sum().backward();
      plain->forward(input_of(step)).sum().backward();
      for (const auto& [name, state] : unit_states(net))
        RANK_CHECK(state == "(Sharded, Idle, None)", name + state);
    }
    check_full_gradients(net, plain);
  });
}

TEST_CASE("a first unit that is called twice is gathered for each call and once in backward",
          "[runtime][schedule]") {
  struct TwiceImpl : torch::nn::Module {
    Stage first{nullptr}, last{nullptr};
    TwiceImpl() {
      first = register_module("first", Stage("first", nullptr));
      last = register_module("last", Stage("last", nullptr));
    }
    torch::Tensor forward(torch::Tensor x) {
      return last->forward(first->forward(first->forward(x)));
    }
  };
  Options common;
  common.forward_prefetch = GENERATE(false, true);
  common.backward_prefetch =
      GENERATE(BackwardPrefetch::kPre, BackwardPrefetch::kPost, BackwardPrefetch::kNone);
  const bool evaluated_first = GENERATE(false, true);
  run_threads(2, [&](World& world) {
    const auto make = [] {
      const std::lock_guard lock(generator_mutex());
      torch::manual_seed(6);
      return Holder<TwiceImpl>();
    };
    Holder<TwiceImpl> net = make(), plain = make();
    Options options = common;
    options.mesh = world.mesh();
    fully_shard(net->first, options);
    fully_shard(net->last, options);
    fully_shard(net, options);
    for (int evaluation = 0; evaluated_first && evaluation < 3; ++evaluation) {
      const torch::NoGradGuard no_grad;
      world.communicator()->reset_counts();
      RANK_CHECK(torch::allclose(net->forward(input_of(0)), plain->forward(input_of(0))));
      RANK_CHECK(world.communicator()->counts().all_gathers == 3);
    }
    for (int step = 0; step < 3; ++step) {
      world.communicator()->reset_counts();
      net->forward(input_of(step)).square().sum().backward();
      plain->forward(input_of(step)).square().sum().backward();
      const CommCounts counts = world.communicator()->counts();
      RANK_CHECK(counts.all_gathers == 5, fmt::format("{} gathers", counts.all_gathers));
      RANK_CHECK(counts.reduce_scatters == 2);
      for (const auto& [name, state] : unit_states(net))
        RANK_CHECK(state == "(Sharded, Idle, None)", name + state);
    }
    check_full_gradients(net, plain);
  });
}

}  // namespace runtime_schedule_test
