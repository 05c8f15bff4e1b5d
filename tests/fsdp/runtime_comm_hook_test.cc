// Communication hooks: what they are given, what becomes of their result, when they are refused.
#include <fmt/format.h>

#include <mutex>

#include "fsdp_core/runtime/root.h"
#include "fsdp_core/stream/stream.h"
#include "tests/fsdp/models.h"
#include "tests/fsdp/torch_and_catch.h"

namespace runtime_comm_hook_test {

using namespace tessera::fsdp;
using namespace tessera::fsdp::test;

namespace {

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Three units side by side: gradients are sums of products of short binary fractions, exact in
/// float in whatever order they are added.
struct SumImpl : torch::nn::Module {
  std::vector<Holder<torch::nn::LinearImpl>> parts;
  SumImpl() {
    for (const auto& [name, out] : {std::pair("a", 3), std::pair("b", 3), std::pair("c", 3)})
      parts.push_back(register_module(name, Holder<torch::nn::LinearImpl>(7, out)));
  }
  torch::Tensor forward(torch::Tensor x) {
    return parts[0]->forward(x) + parts[1]->forward(x) * 3 + parts[2]->forward(x) * 5;
  }
};
FSDP_MODULE(Sum);

void shard(Sum& net, const Options& options) {
  for (auto& part : net->parts) fully_shard(part, options);
  fully_shard(net, options);
}

void backward(Sum& net, int rank) {
  torch::Tensor x = (torch::arange(35) * (rank * 7 + 11) % 509).view({5, 7}) / 64.0;
  net->forward(x).sum().backward();
}

using Gradients = std::vector<torch::Tensor>;

/// What the plain module gives for the part of each rank.
std::vector<Gradients> plain_gradients(int world_size) {
  std::vector<Gradients> out;
  for (int rank = 0; rank < world_size; ++rank) {
    Sum plain;
    backward(plain, rank);
    out.emplace_back();
    for (const auto& param : plain->parameters()) out.back().push_back(param.grad());
  }
  return out;
}

struct Factors {
  double pre, post;
};
/// By the words of the rule: doubled while it divides and stays below what is left.
Factors factors_of(int n) {
  switch (n) {
    case 1:
      return {1, 1};
    case 2:
      return {2, 1};
    case 3:
      return {2, 1.5};
    default:
      return {2, n / 2.0};
  }
}

/// Sum in rank order in `wire`, whose 16-bit types are summed in float and rounded once.
Gradients oracle(const std::vector<Gradients>& ranks, torch::Dtype wire, Factors factors) {
  Gradients out;
  for (std::size_t p = 0; p < ranks[0].size(); ++p) {
    torch::Tensor sum;
    for (const Gradients& rank : ranks) {
      const torch::Tensor part = rank[p].to(wire).div(factors.pre).to(torch::kFloat);
      sum = sum.defined() ? sum + part : part;
    }
    out.push_back(sum.to(wire).div(factors.post).to(torch::kFloat));
  }
  return out;
}

/// One backward with `hook`; the full gradients of every rank are `want`.
void check_hook(int world_size, const Options& common, const CommHook& hook, const Gradients& want,
                const WorldOptions& backend = {}) {
  run_threads(
      world_size,
      [&](World& world) {
        Sum net;
        Options options = common;
        options.mesh = world.mesh();
        shard(net, options);
        if (hook.function) register_comm_hook(net, hook);
        backward(net, world.rank());
        SummonOptions summon;
        summon.with_grads = true;
        SummonFullParams full(net, summon);
        const auto ours = net->named_parameters();
        for (std::size_t p = 0; p < want.size(); ++p) {
          const torch::Tensor& grad = ours[p].value().grad();
          RANK_CHECK(grad.defined() && grad.scalar_type() == torch::kFloat, ours[p].key());
          RANK_CHECK(torch::equal(grad, want[p]),
                     fmt::format("{}: off by {}", ours[p].key(),
                                 (grad - want[p]).abs().max().item<double>()));
        }
      },
      backend);
}

CommHook sum_hook() {
  return CommHook([](GradientBucket& bucket) {
    if (bucket.shard.defined())
      bucket.comm.reduce_scatter_into(bucket.shard, bucket.gradient, Reduce::kSum, bucket.tag);
    else
      bucket.comm.all_reduce(bucket.gradient, Reduce::kSum, bucket.tag);
  });
}

}  // namespace

TEST_CASE("the runtime divides nothing around a hook", "[runtime][commhook]") {
  const int world_size = GENERATE(1, 2, 3, 4);
  const auto strategy = GENERATE(ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp,
                                 ShardingStrategy::kNoShard);
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  CAPTURE(world_size, strategy_name(strategy), static_cast<int>(layout));
  Options options;
  options.strategy = strategy;
  options.layout = layout;
  const auto ranks = plain_gradients(world_size);
  check_hook(world_size, options, sum_hook(), oracle(ranks, torch::kFloat, {1, 1}));
  check_hook(world_size, options, average_hook(),
             oracle(ranks, torch::kFloat, factors_of(world_size)));
}

TEST_CASE("compression hooks give what a sum in their dtype gives", "[runtime][commhook]") {
  const int world_size = GENERATE(1, 2, 3, 4);
  const auto strategy = GENERATE(ShardingStrategy::kFullShard, ShardingStrategy::kNoShard);
  const auto dtype = GENERATE(torch::kHalf, torch::kBFloat16);
  CAPTURE(world_size, strategy_name(strategy), c10::toString(dtype));
  Options options;
  options.strategy = strategy;
  const Gradients want = oracle(plain_gradients(world_size), dtype, factors_of(world_size));
  const CommHook hook = dtype == torch::kHalf ? fp16_compress_hook() : bf16_compress_hook();
  check_hook(world_size, options, hook, want);
  // The same over sockets.
  if (world_size == 3) {
    WorldOptions gloo;
    gloo.backend = "gloo";
    check_hook(world_size, options, hook, want, gloo);
  }
  // fp16 as the reduce dtype is the same arithmetic; so is bf16 where the division is exact.
  if (dtype == torch::kHalf || world_size != 3) {
    options.mixed_precision.reduce_dtype = dtype;
    check_hook(world_size, options, {}, want);
  }
}

TEST_CASE("hooks under late streams give the same", "[runtime][commhook]") {
  const auto strategy = GENERATE(ShardingStrategy::kFullShard, ShardingStrategy::kNoShard);
  const Gradients want = oracle(plain_gradients(3), torch::kHalf, factors_of(3));
  run_threads(3, [&](World& world) {
    tessera::fsdp::detail::Root::use_streams(
        simulated_streams(static_cast<std::uint64_t>(world.rank()), 1000));
    Sum net;
    Options options;
    options.mesh = world.mesh();
    options.strategy = strategy;
    shard(net, options);
    register_comm_hook(net, fp16_compress_hook());
    backward(net, world.rank());
    {
      SummonOptions summon;
      summon.with_grads = true;
      SummonFullParams full(net, summon);
      const auto ours = net->parameters();
      for (std::size_t p = 0; p < want.size(); ++p)
        RANK_CHECK(torch::equal(ours[p].grad(), want[p]));
    }
    tessera::fsdp::detail::Root::use_streams(nullptr);
  });
}

TEST_CASE("a compressed gradient goes back to the parameter's dtype - not through the reduce dtype",
          "[runtime][commhook]") {
  const auto strategy = GENERATE(ShardingStrategy::kFullShard, ShardingStrategy::kNoShard);
  run_threads(2, [&](World& world) {
    Holder<torch::nn::LinearImpl> linear(torch::nn::LinearOptions(4, 1).bias(false));
    Options options;
    options.mesh = world.mesh();
    options.strategy = strategy;
    options.mixed_precision.reduce_dtype = torch::kBFloat16;
    fully_shard(linear, options);
    register_comm_hook(linear, fp16_compress_hook());
    // 1.0625 is a bf16 number; the mean with 1 has more bits than bf16 and fewer than fp16.
    const double mine = world.rank() == 0 ? 1.0 : 1.0078125;
    linear->forward(torch::full({1, 4}, mine)).sum().backward();
    SummonOptions summon;
    summon.with_grads = true;
    SummonFullParams full(linear, summon);
    RANK_CHECK(torch::equal(linear->weight.grad(), torch::full({1, 4}, 1.00390625)));
    // On the wire it was fp16.
    bool seen = false;
    for (const CommRecord& record : world.communicator()->records())
      if (record.phase == CommPhase::kBackward && record.op != CommOp::kAllGather) {
        RANK_CHECK(record.dtype == torch::kHalf);
        seen = true;
      }
    RANK_CHECK(seen);
  });
}

TEST_CASE("sixteen gradients of 8000 do not overflow fp16", "[runtime][commhook]") {
  run_threads(16, [](World& world) {
    Holder<torch::nn::LinearImpl> linear(torch::nn::LinearOptions(4, 1).bias(false));
    Options options;
    options.mesh = world.mesh();
    fully_shard(linear, options);
    register_comm_hook(linear, fp16_compress_hook());
    linear->forward(torch::full({1, 4}, 8000.0)).sum().backward();
    SummonOptions summon;
    summon.with_grads = true;
    SummonFullParams full(linear, summon);
    RANK_CHECK(torch::equal(linear->weight.grad(), torch::full({1, 4}, 8000.0)));
  });
}

TEST_CASE("a hook runs once a unit where gradients are synchronised", "[runtime][commhook]") {
  run_threads(2, [](World& world) {
    Net net = make_net();
    Options options;
    options.mesh = world.mesh();
    shard(net, options);
    std::string calls;
    auto reduce = sum_hook().function;
    register_comm_hook(net, [&](GradientBucket& bucket) {
      calls += fmt::format("[{}]", bucket.tag.unit);
      RANK_CHECK(bucket.gradient.numel() == 2 * bucket.shard.numel());
      RANK_CHECK(bucket.ranks == 2 && bucket.parameter_dtype == torch::kFloat);
      reduce(bucket);
    });
    const Data data = make_data();
    {
      NoSync no_sync(net);
      torch::mse_loss(net->forward(data.x), data.y).backward();
    }
    RANK_CHECK(calls.empty(), calls);
    torch::mse_loss(net->forward(data.x), data.y).backward();
    RANK_CHECK(calls == "[blocks2][blocks1][blocks0][]", calls);
  });
}

TEST_CASE("a hook that is refused leaves nothing registered", "[runtime][commhook]") {
  run_threads(4, [](World& world) {
    const Data data = make_data();
    auto refused = [&](const ModuleRef& module, CommHook hook, const char* word) {
      const std::string message = message_of([&] { register_comm_hook(module, std::move(hook)); });
      RANK_CHECK(has(message, word), message);
    };
    Options options;
    options.mesh = world.mesh();

    // One hybrid unit deep in the tree.
    Net mixed = make_net();
    Options hybrid;
    hybrid.mesh = DeviceMesh(world, {2, 2}, {"replicate", "shard"});
    hybrid.strategy = ShardingStrategy::kHybridShard;
    fully_shard(mixed->blocks[2], hybrid);
    fully_shard(mixed->blocks[0], options);
    fully_shard(mixed, options);
    refused(mixed, sum_hook(), "HYBRID_SHARD");
    refused(mixed, sum_hook(), "blocks2");
    torch::mse_loss(mixed->forward(data.x), data.y).backward();  // without any hook

    Net net = make_net();
    refused(net, sum_hook(), "fully_shard");
    shard(net, options);
    refused(net, CommHook{}, "empty");
    refused(net, CommHook(CommHook::Function{}), "empty");
    auto y = net->forward(data.x);
    refused(net->blocks[1], sum_hook(), "outermost");
    register_comm_hook(net, average_hook());  // a forward alone is no backward
    refused(net, sum_hook(), "already (average_hook)");
    torch::mse_loss(y, data.y).backward();

    Net late = make_net();
    shard(late, options);
    torch::mse_loss(late->forward(data.x), data.y).backward();
    refused(late, sum_hook(), "before the first step");

    // An inner unit that was the outermost until now.
    Net inner = make_net();
    shard(inner, options);
    register_comm_hook(inner->blocks[1], sum_hook());
    RANK_CHECK(has(message_of([&] { inner->forward(data.x); }), "blocks1"));
  });
}

TEST_CASE("a hook that throws or leaves nonsense fails the step on every rank",
          "[runtime][commhook]") {
  const bool throws = GENERATE(true, false);
  run_threads(3, [&](World& world) {
    Net net = make_net();
    Options options;
    options.mesh = world.mesh();
    shard(net, options);
    int calls = 0;
    auto reduce = average_hook().function;
    register_comm_hook(net, [&](GradientBucket& bucket) {
      if (++calls == 2 && world.rank() == 1) {
        if (throws) throw std::runtime_error("no more reductions");
        bucket.shard = torch::ones({1});
        return;
      }
      reduce(bucket);
    });
    const Data data = make_data();
    auto step = [&] { torch::mse_loss(net->forward(data.x), data.y).backward(); };
    const std::string message = message_of([&] {
      step();
      step();
    });
    RANK_CHECK(has(message, world.rank() != 1 ? "rank 1"
                            : throws          ? "no more"
                                              : "blocks1"),
               message);
    World(world).reset();
    reset(net);
    calls = 10;
    step();
    Net plain = make_net();
    torch::mse_loss(plain->forward(data.x), data.y).backward();
    SummonOptions summon;
    summon.with_grads = true;
    SummonFullParams full(net, summon);
    const auto theirs = plain->named_parameters();
    for (const auto& param : net->named_parameters())
      RANK_CHECK(torch::allclose(param.value().grad(), theirs[param.key()].grad(), 1e-5, 1e-6));
  });
}

}  // namespace runtime_comm_hook_test
