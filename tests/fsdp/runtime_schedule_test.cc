// When collectives are issued beside compute, not only in which order; and the odd ways to run
// units: gathered by hand, skipped, inside checkpoints, evaluated alone, returning what an inner
// one returned.
#include <fmt/format.h>

#include <cmath>

#include "fsdp_core/runtime/gradient_reducer.h"
#include "fsdp_core/runtime/root.h"
#include "tests/fsdp/full_gradients.h"
#include "tests/fsdp/models.h"
#include "tests/fsdp/torch_and_catch.h"

using namespace tessera::fsdp;
using namespace tessera::fsdp::test;

namespace {

using Log = std::shared_ptr<std::string>;

void note(const Log& log, const std::string& what) {
  if (log) *log += (log->empty() ? "" : " ") + what;
}

constexpr std::int64_t kSize = 6;

/// A linear layer that notes when it computes: "F(b0)", and "B(b0)" as its weight's gradient is
/// there.
struct StageImpl : torch::nn::Module {
  StageImpl(std::string name_, Log log_) : name(std::move(name_)), log(std::move(log_)) {
    linear = register_module("linear", torch::nn::Linear(kSize, kSize));
    if (log)
      linear->weight.register_hook(
          [n = name, l = log](const torch::Tensor&) { note(l, "B(" + n + ")"); });
  }
  torch::Tensor forward(torch::Tensor x) {
    note(log, "F(" + name + ")");
    const auto body = [this](torch::Tensor in) { return torch::tanh(linear->forward(in)); };
    return inner_checkpoint ? checkpoint(body, x) : body(x);
  }
  std::string name;
  Log log;
  bool inner_checkpoint = false;
  torch::nn::Linear linear{nullptr};
};
FSDP_MODULE(Stage);

/// Two stages and, where asked, a weight of the root's own at the beginning.
struct LineImpl : torch::nn::Module {
  explicit LineImpl(Log log_ = nullptr, bool own = true) : log(std::move(log_)) {
    if (own) first = register_parameter("first", torch::eye(kSize));
    for (int i = 0; i < 2; ++i) {
      const std::string name = fmt::format("b{}", i);
      stages.push_back(register_module(name, Stage(name, log)));
    }
    if (own && log) first.register_hook([l = log](const torch::Tensor&) { note(l, "B(root)"); });
  }
  torch::Tensor forward(torch::Tensor x) {
    note(log, "F(root)");
    if (first.defined()) x = x.matmul(first);
    for (std::size_t i = 0; i < stages.size(); ++i) {
      if (i == skipped) continue;
      x = outer_checkpoint
              ? checkpoint([s = stages[i]](torch::Tensor in) mutable { return s->forward(in); }, x)
              : stages[i]->forward(x);
    }
    return x;
  }
  Log log;
  torch::Tensor first;
  std::vector<Stage> stages;
  std::size_t skipped = 99;
  bool outer_checkpoint = false;
};
FSDP_MODULE(Line);

Line make_line(const Log& log = nullptr, bool own = true) {
  const std::lock_guard lock(generator_mutex());
  torch::manual_seed(11);
  return Line(log, own);
}

void shard_line(Line& net, const Options& options) {
  for (Stage& stage : net->stages) fully_shard(stage, options);
  fully_shard(net, options);
}

torch::Tensor input_of(int rank) {
  return torch::arange(2 * kSize, torch::kFloat).view({2, kSize}).sin() * (rank + 1);
}

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

TEST_CASE("divide factors are those of the table", "[runtime][precision]") {
  const auto [ranks, pre, post] = GENERATE(table<int, double, double>({{1, 1, 1},
                                                                       {2, 2, 1},
                                                                       {3, 2, 1.5},
                                                                       {4, 2, 2},
                                                                       {5, 2, 2.5},
                                                                       {6, 4, 1.5},
                                                                       {7, 2, 3.5},
                                                                       {8, 4, 2},
                                                                       {10, 4, 2.5},
                                                                       {12, 4, 3},
                                                                       {16, 4, 4},
                                                                       {20, 8, 2.5},
                                                                       {24, 8, 3},
                                                                       {32, 8, 4},
                                                                       {64, 8, 8},
                                                                       {128, 16, 8},
                                                                       {256, 16, 16},
                                                                       {512, 32, 16},
                                                                       {1024, 32, 32}}));
  const auto factors = tessera::fsdp::detail::divide_factors(ranks);
  CHECK(factors.pre == pre);
  CHECK(factors.post == post);
}

TEST_CASE("gradients lie in one buffer from autograd to the reduction", "[runtime][gradients]") {
  run_threads(2, [](World& world) {
    Line net = make_line();
    Options options;
    options.mesh = world.mesh();
    torch::Tensor weight = net->stages[0]->linear->weight, bias = net->stages[0]->linear->bias;
    shard_line(net, options);
    const void *base = nullptr, *weight_at = nullptr, *bias_at = nullptr;
    weight.register_hook([&](const torch::Tensor&) {
      base = weight.grad().storage().data();
      weight_at = weight.grad().data_ptr();
      bias_at = bias.grad().data_ptr();
    });
    const void* reduced = nullptr;
    register_comm_hook(net, [&, average = average_hook().function](GradientBucket& bucket) {
      if (bucket.tag.unit == "b0") reduced = bucket.gradient.data_ptr();
      average(bucket);
    });
    net->forward(input_of(0)).sum().backward();
    RANK_CHECK(base != nullptr && reduced == base);
    RANK_CHECK(weight_at == base);
    RANK_CHECK(static_cast<const char*>(bias_at) - static_cast<const char*>(base) ==
               4 * kSize * kSize);
  });
}

TEST_CASE("the gradient of a one-element unit adds up over reductions", "[runtime][gradients]") {
  struct OneImpl : torch::nn::Module {
    OneImpl() { scale = register_parameter("scale", torch::full({1}, 3.0)); }
    torch::Tensor forward(torch::Tensor x) { return x * scale; }
    torch::Tensor scale;
  };
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  run_threads(2, [&](World& world) {
    Holder<OneImpl> net, plain;
    Options options;
    options.mesh = world.mesh();
    options.layout = layout;
    fully_shard(net, options);
    for (int micro = 0; micro < 3; ++micro) {
      net->forward(input_of(micro)).sum().backward();
      plain->forward(input_of(micro)).sum().backward();
    }
    check_full_gradients(net, plain);
  });
}

TEST_CASE("each unit follows its own flag of synchronisation", "[runtime][gradients]") {
  run_threads(2, [](World& world) {
    Line net = make_line(), plain = make_line();
    Options options;
    options.mesh = world.mesh();
    shard_line(net, options);
    const auto micro = [&](int which) {
      net->forward(input_of(which)).sum().backward();
      plain->forward(input_of(which)).sum().backward();
    };
    set_requires_gradient_sync(net->stages[0], false);
    world.communicator()->reset_counts();
    micro(0);
    RANK_CHECK(world.communicator()->counts().reduce_scatters == 2);
    RANK_CHECK(!net->stages[0]->parameters()[0].grad().defined());
    RANK_CHECK(net->stages[1]->parameters()[0].grad().defined());
    set_requires_gradient_sync(net->stages[0], true);
    world.communicator()->reset_counts();
    micro(1);
    RANK_CHECK(world.communicator()->counts().reduce_scatters == 3);
    check_full_gradients(net, plain);
  });
}

TEST_CASE("values set while parameters are kept in low precision are used",
          "[runtime][precision]") {
  run_threads(2, [](World& world) {
    Line net = make_line(), plain = make_line();
    Options options;
    options.mesh = world.mesh();
    options.strategy = ShardingStrategy::kShardGradOp;
    options.mixed_precision.param_dtype = torch::kBFloat16;
    shard_line(net, options);
    net->forward(input_of(0));  // kept; no backward comes
    const auto halve = [](Line& n) {
      const torch::NoGradGuard no_grad;
      for (torch::Tensor& param : n->parameters()) param.mul_(0.5);
    };
    {
      const SummonFullParams full(net);
      halve(net);
    }
    halve(plain);
    const torch::NoGradGuard evaluation;
    RANK_CHECK(torch::allclose(net->forward(input_of(0)).to(torch::kFloat),
                               plain->forward(input_of(0)), 2e-2, 2e-2));
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

TEST_CASE("create_graph is refused by name on every rank", "[runtime][gradients]") {
  run_threads(2, [](World& world) {
    Line net = make_line(), plain = make_line();
    Options options;
    options.mesh = world.mesh();
    shard_line(net, options);
    const std::string message = message_of([&] {
      net->forward(input_of(0)).sum().backward({}, /*keep_graph=*/true, /*create_graph=*/true);
    });
    RANK_CHECK(message.find("create_graph") != std::string::npos, message);
    World(world).reset();
    reset(net);
    net->forward(input_of(0)).sum().backward();
    plain->forward(input_of(0)).sum().backward();
    check_full_gradients(net, plain);
  });
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

TEST_CASE("shards of a unit are slices of one buffer and no autograd views",
          "[runtime][gradients]") {
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  run_threads(2, [&](World& world) {
    Line net = make_line();
    Options options;
    options.mesh = world.mesh();
    options.layout = layout;
    shard_line(net, options);
    net->forward(input_of(0)).sum().backward();
    const auto params = net->stages[0]->parameters();
    const auto version = params[1]._version();
    {
      const torch::NoGradGuard no_grad;
      params[0].add_(1);
    }
    for (const torch::Tensor& param : params) {
      RANK_CHECK(!param.is_view() && !param.grad().is_view());
      RANK_CHECK(param.storage().data() == params[0].storage().data());
      RANK_CHECK(param.grad().storage().data() == params[0].grad().storage().data());
    }
    RANK_CHECK(params[1]._version() == version);
  });
}
