// Dtypes: what the forward computes in, what goes over the wire, what the optimizer sees.
#include <fmt/format.h>

#include <cstdlib>

#include "tests/fsdp/models.h"
#include "tests/fsdp/torch_and_catch.h"

namespace runtime_precision_test {

using namespace tessera::fsdp;
using namespace tessera::fsdp::test;

namespace {

/// Records the dtypes its forward sees.
struct ProbeImpl : torch::nn::Module {
  torch::nn::Linear linear{nullptr};
  torch::Tensor running;
  torch::Dtype input = torch::kDouble, weight = torch::kDouble, buffer = torch::kDouble;
  ProbeImpl() {
    linear = register_module("linear", torch::nn::Linear(7, 7));
    running = register_buffer("running", torch::zeros({7}));
  }
  torch::Tensor forward(torch::Tensor x) {
    input = x.scalar_type();
    weight = linear->weight.scalar_type();
    buffer = running.scalar_type();
    return linear->forward(x);
  }
};
FSDP_MODULE(Probe);

}  // namespace

TEST_CASE(
    "forward computes in param_dtype - gradients are reduced in reduce_dtype - shards stay full",
    "[runtime][precision]") {
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  const int world_size = GENERATE(1, 3);
  CAPTURE(world_size);
  run_threads(world_size, [&](World& world) {
    Probe probe;
    Options options;
    options.mesh = world.mesh();
    options.layout = layout;
    options.mixed_precision.param_dtype = torch::kBFloat16;
    options.mixed_precision.reduce_dtype = torch::kFloat;
    options.mixed_precision.buffer_dtype = torch::kBFloat16;
    options.mixed_precision.output_dtype = torch::kFloat;
    fully_shard(probe, options);
    std::vector<at::ScalarType> gathered, reduced;
    world.communicator()->observe([&](const CommRecord& record) {
      if (record.op == CommOp::kAllGather) gathered.push_back(record.dtype);
      if (record.op == CommOp::kReduceScatter) reduced.push_back(record.dtype);
    });
    auto y = probe->forward(torch::ones({4, 7}));
    RANK_CHECK(probe->input == torch::kBFloat16);
    RANK_CHECK(probe->weight == torch::kBFloat16);
    RANK_CHECK(probe->buffer == torch::kBFloat16);
    RANK_CHECK(y.scalar_type() == torch::kFloat);
    y.sum().backward();
    for (const auto& param : probe->parameters()) {
      RANK_CHECK(param.scalar_type() == torch::kFloat);
      RANK_CHECK(param.grad().defined());
      RANK_CHECK(param.grad().scalar_type() == torch::kFloat);
    }
    if (world_size > 1) {
      RANK_CHECK(gathered == std::vector<at::ScalarType>(gathered.size(), at::kBFloat16));
      RANK_CHECK(reduced == std::vector<at::ScalarType>(1, at::kFloat));
    }
    world.communicator()->observe({});
  });
}

TEST_CASE("without the variable evaluation computes and training reduces in param_dtype",
          "[runtime][precision]") {
  const auto strategy = GENERATE(ShardingStrategy::kFullShard, ShardingStrategy::kNoShard);
  run_threads(2, [&](World& world) {
    Probe probe;
    Options options;
    options.mesh = world.mesh();
    options.strategy = strategy;
    options.mixed_precision.param_dtype = torch::kBFloat16;
    options.mixed_precision.buffer_dtype = torch::kBFloat16;
    fully_shard(probe, options);
    for (const bool training : {true, false, true}) {
      probe->train(training);
      RANK_CHECK(probe->forward(torch::ones({4, 7})).scalar_type() == torch::kBFloat16);
      RANK_CHECK(probe->weight == torch::kBFloat16 && probe->buffer == torch::kBFloat16);
    }
    std::vector<at::ScalarType> reduced;
    world.communicator()->observe([&](const CommRecord& record) {
      if (record.op == CommOp::kReduceScatter || record.op == CommOp::kAllReduce)
        reduced.push_back(record.dtype);
    });
    probe->forward(torch::ones({4, 7})).sum().backward();
    world.communicator()->observe({});
    RANK_CHECK(reduced == std::vector<at::ScalarType>{at::kBFloat16});
    for (const auto& param : probe->parameters())
      RANK_CHECK(param.grad().scalar_type() == torch::kFloat);
  });
}

TEST_CASE("low-precision gradients can be kept", "[runtime][precision]") {
  const auto strategy = GENERATE(ShardingStrategy::kFullShard, ShardingStrategy::kNoShard);
  run_threads(2, [&](World& world) {
    Probe probe;
    Options options;
    options.mesh = world.mesh();
    options.strategy = strategy;
    options.mixed_precision.param_dtype = torch::kBFloat16;
    options.mixed_precision.keep_low_precision_grads = true;
    fully_shard(probe, options);
    for (int step = 0; step < 2; ++step) probe->forward(torch::ones({4, 7})).sum().backward();
    for (const auto& param : probe->parameters())
      RANK_CHECK(param.grad().scalar_type() == torch::kBFloat16);
  });
}

TEST_CASE("evaluation in full precision by environment variable", "[runtime][precision]") {
  setenv("FSDP_USE_FULL_PREC_IN_EVAL", "1", 1);
  run_threads(2, [](World& world) {
    Net net = make_net(), plain = make_net();
    Options options;
    options.mesh = world.mesh();
    options.mixed_precision.param_dtype = torch::kBFloat16;
    shard(net, options);
    const Data data = make_data();
    auto train = [&] {
      net->train();
      auto y = net->forward(data.x);
      RANK_CHECK(y.scalar_type() == torch::kBFloat16);
      y.sum().backward();
    };
    train();
    for (const bool gradients : {false, true}) {
      torch::AutoGradMode mode(gradients);
      net->eval();
      auto y = net->forward(data.x);
      RANK_CHECK(y.scalar_type() == torch::kFloat);
      RANK_CHECK(torch::equal(y, plain->forward(data.x)));
      if (gradients) y.sum().backward();
    }
    train();
  });
  unsetenv("FSDP_USE_FULL_PREC_IN_EVAL");
}

TEST_CASE("bf16 training follows the plain bf16 module", "[runtime][precision]") {
  run_threads(2, [](World& world) {
    Net net = make_net(), plain = make_net();
    Options options;
    options.mesh = world.mesh();
    options.mixed_precision.param_dtype = torch::kBFloat16;
    options.mixed_precision.reduce_dtype = torch::kFloat;
    shard(net, options);
    torch::optim::SGD ours(net->parameters(), 0.05);
    const Data data = make_data();
    double first = 0, last = 0;
    for (int step = 0; step < 30; ++step) {
      ours.zero_grad();
      auto loss = torch::mse_loss(net->forward(data.x).to(torch::kFloat), data.y);
      loss.backward();
      ours.step();
      if (step == 0) first = loss.item<double>();
      last = loss.item<double>();
    }
    RANK_CHECK(last < first, fmt::format("{} -> {}", first, last));
    const double reference = torch::mse_loss(plain->forward(data.x), data.y).item<double>();
    RANK_CHECK(std::abs(first - reference) < 0.02 * reference,
               fmt::format("{} and {}", first, reference));
  });
}

TEST_CASE("fp16 gradients that would overflow as a sum survive", "[runtime][precision]") {
  run_threads(4, [](World& world) {
    Holder<torch::nn::LinearImpl> linear(torch::nn::LinearOptions(4, 1).bias(false));
    Options options;
    options.mesh = world.mesh();
    options.mixed_precision.reduce_dtype = torch::kHalf;
    fully_shard(linear, options);
    linear->forward(torch::full({1, 4}, 32000.0)).sum().backward();
    SummonOptions summon;
    summon.with_grads = true;
    SummonFullParams full(linear, summon);
    RANK_CHECK(torch::equal(linear->weight.grad(), torch::full({1, 4}, 32000.0)));
  });
}

TEST_CASE("a backward computes in what its own forward computed in", "[runtime][precision]") {
  setenv("FSDP_USE_FULL_PREC_IN_EVAL", "1", 1);
  const auto strategy = GENERATE(ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp);
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  const bool full = GENERATE(false, true);  // the forward was an evaluation
  const bool between = GENERATE(false, true);
  CAPTURE(strategy_name(strategy), full, between);
  run_threads(2, [&](World& world) {
    Net net = make_net(), plain = make_net();
    Options options;
    options.mesh = world.mesh();
    options.strategy = strategy;
    options.layout = layout;
    options.mixed_precision.param_dtype = torch::kBFloat16;
    options.mixed_precision.reduce_dtype = torch::kFloat;
    shard(net, options);
    if (!full) plain->to(torch::kBFloat16);
    const Data data = make_data();
    for (int step = 0; step < 2; ++step) {
      for (auto* each : {&net, &plain})
        for (auto& param : (*each)->parameters()) param.mutable_grad().reset();
      net->train(!full);
      const torch::Tensor y = net->forward(data.x);
      RANK_CHECK(y.scalar_type() == (full ? torch::kFloat : torch::kBFloat16));
      net->train(full);
      if (between) {
        const torch::NoGradGuard no_grad;
        net->forward(data.x);
      }
      y.to(torch::kFloat).square().mean().backward();
      const torch::Tensor x = full ? data.x : data.x.to(torch::kBFloat16);
      plain->forward(x).to(torch::kFloat).square().mean().backward();
      SummonOptions with_grads;
      with_grads.with_grads = true;
      const SummonFullParams summoned(net, with_grads);
      const auto want = plain->named_parameters();
      for (const auto& param : net->named_parameters()) {
        const torch::Tensor theirs = want[param.key()].grad().to(torch::kFloat);
        RANK_CHECK(torch::allclose(param.value().grad(), theirs, full ? 1e-5 : 1e-2, 1e-5),
                   fmt::format("{} step {}", param.key(), step));
      }
    }
  });
  unsetenv("FSDP_USE_FULL_PREC_IN_EVAL");
}

TEST_CASE("buffers are in their own dtypes while evaluation computes in full precision",
          "[runtime][precision]") {
  const char* variable = GENERATE("FSDP_USE_FULL_PREC_IN_EVAL", "FSDP_FULL_PREC_IN_EVAL");
  setenv(variable, "1", 1);
  run_threads(2, [](World& world) {
    Probe probe;
    Options options;
    options.mesh = world.mesh();
    options.mixed_precision.param_dtype = torch::kBFloat16;
    options.mixed_precision.buffer_dtype = torch::kBFloat16;
    fully_shard(probe, options);
    const torch::Tensor x = torch::ones({2, 7});
    for (const bool training : {true, false, true, false}) {
      probe->train(training);
      const auto want = training ? torch::kBFloat16 : torch::kFloat;
      RANK_CHECK(probe->forward(x).scalar_type() == want);
      RANK_CHECK(probe->buffer == want && probe->weight == want &&
                 probe->input == (training ? want : torch::kFloat));
    }
  });
  unsetenv(variable);
}

TEST_CASE("a buffer follows the innermost unit that holds it", "[runtime][precision]") {
  struct OuterImpl : torch::nn::Module {
    Probe inner{nullptr};
    torch::Tensor own;
    torch::Dtype seen = torch::kDouble;
    OuterImpl() {
      inner = register_module("inner", Probe());
      own = register_buffer("own", torch::zeros({3}));
    }
    torch::Tensor forward(torch::Tensor x) {
      seen = own.scalar_type();
      return inner->forward(x);
    }
  };
  const bool inner_casts = GENERATE(true, false);
  run_threads(2, [&](World& world) {
    Holder<OuterImpl> net;
    Options outer, inner;
    outer.mesh = inner.mesh = world.mesh();
    (inner_casts ? inner : outer).mixed_precision.buffer_dtype = torch::kHalf;
    fully_shard(net->inner, inner);
    fully_shard(net, outer);
    net->forward(torch::ones({2, 7}));
    RANK_CHECK(net->inner->buffer == (inner_casts ? torch::kHalf : torch::kFloat));
    RANK_CHECK(net->seen == (inner_casts ? torch::kFloat : torch::kHalf));
  });
}

TEST_CASE("evaluation in full precision is one setting for a whole tree", "[runtime][precision]") {
  unsetenv("FSDP_USE_FULL_PREC_IN_EVAL");
  run_threads(1, [](World&) {
    World world = fake_world(0, 2);
    Net net = make_net(1);
    Options options;
    options.mesh = world.mesh();
    options.mixed_precision.param_dtype = torch::kBFloat16;
    setenv("FSDP_USE_FULL_PREC_IN_EVAL", "1", 1);
    fully_shard(net->blocks[0], options);
    unsetenv("FSDP_USE_FULL_PREC_IN_EVAL");
    fully_shard(net, options);
    const std::string message = message_of([&] { net->forward(make_data().x); });
    RANK_CHECK(message.find("blocks0") != std::string::npos, message);
    RANK_CHECK(message.find("FSDP_USE_FULL_PREC_IN_EVAL") != std::string::npos, message);
  });
}

}  // namespace runtime_precision_test
