// How gradients lie in memory, are divided and add up over reductions; and what is refused.
#include <fmt/format.h>

#include "fsdp_core/runtime/gradient_reducer.h"
#include "tests/fsdp/full_gradients.h"
#include "tests/fsdp/line_model.h"
#include "tests/fsdp/torch_and_catch.h"

namespace runtime_gradients_test {

using namespace tessera::fsdp;
using namespace tessera::fsdp::test;

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

}  // namespace runtime_gradients_test
