// Dtypes: what the forward computes in, what goes over the wire, what the optimizer sees.
#include <fmt/format.h>

#include <cstdlib>

#include "tests/fsdp/models.h"
#include "tests/fsdp/torch_and_catch.h"

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

TEST_CASE("low-precision gradients can be kept", "[runtime][precision]") {
  run_threads(2, [](World& world) {
    Probe probe;
    Options options;
    options.mesh = world.mesh();
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
