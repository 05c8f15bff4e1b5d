// Clipping by the norm of the whole model: over shards, replicas, ignored parameters and parts of
// the model; and where a norm over all ranks cannot be had.
#include <fmt/format.h>

#include "tests/fsdp/beside_plain.h"
#include "tests/fsdp/full_gradients.h"
#include "tests/fsdp/strategies.h"
#include "tests/fsdp/torch_and_catch.h"

namespace runtime_clip_test {

using namespace tessera::fsdp;
using namespace tessera::fsdp::test;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void check_clipped(Net& net, Net& plain, double p) {
  const double ours = clip_grad_norm_(net, 0.1, p).item<double>();
  const double theirs = torch::nn::utils::clip_grad_norm_(plain->parameters(), 0.1, p);
  RANK_CHECK(ours == Approx(theirs).epsilon(1e-5), fmt::format("{} and {}", ours, theirs));
  check_full_gradients(net, plain);
}

}  // namespace

TEST_CASE("clipping gives the whole model's norm", "[runtime][clip]") {
  const double p = GENERATE(1.0, 2.0, 3.0, kInfinity);
  const int world_size = GENERATE(1, 2, 4, 8);
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  CAPTURE(p, world_size);
  run_threads(world_size, [&](World& world) {
    auto [options, net, plain, data] = BesidePlain(world, {.layout = layout});
    backward(net, data);
    backward(plain, data);
    check_clipped(net, plain, p);
  });
}

TEST_CASE("replicas count once in the norm", "[runtime][clip]") {
  const double p = GENERATE(1.0, 2.0, kInfinity);
  const auto strategy = GENERATE(from_range(hybrid_strategies()));
  const auto sizes = GENERATE(std::vector<std::int64_t>{2, 2}, std::vector<std::int64_t>{3, 1},
                              std::vector<std::int64_t>{1, 3}, std::vector<std::int64_t>{3, 2});
  CAPTURE(p, sizes);
  run_threads(static_cast<int>(sizes[0] * sizes[1]), [&](World& world) {
    auto [options, net, plain, data] = BesidePlain(
        world, {.mesh = DeviceMesh(world, sizes, {"replicate", "shard"}), .strategy = strategy});
    backward(net, data);
    backward(plain, data);
    check_clipped(net, plain, p);
  });
}

TEST_CASE("replicated and ignored parameters count once in the norm", "[runtime][clip]") {
  const double p = GENERATE(1.0, 3.0, kInfinity);
  const bool replicated = GENERATE(false, true);
  run_threads(3, [&](World& world) {
    Net net = make_net(), plain = make_net();
    Options options;
    options.mesh = world.mesh();
    if (replicated)
      options.strategy = ShardingStrategy::kNoShard;
    else
      options.ignored_parameters = {net->head->weight, net->blocks[1]->a->bias};
    shard(net, options);
    const Data data = make_data();
    backward(net, data);
    backward(plain, data);
    check_clipped(net, plain, p);
    // What no unit owns is clipped too.
    RANK_CHECK(replicated ||
               torch::allclose(net->head->weight.grad(), plain->head->weight.grad(), 1e-5, 1e-6));
  });
}

TEST_CASE("a part of the model is clipped by its own norm", "[runtime][clip]") {
  run_threads(2, [](World& world) {
    auto [options, net, plain, data] = BesidePlain(world);
    backward(net, data);
    backward(plain, data);
    const double ours = clip_grad_norm_(net->blocks[1], 0.01).item<double>();
    const double theirs = torch::nn::utils::clip_grad_norm_(plain->blocks[1]->parameters(), 0.01);
    RANK_CHECK(ours == Approx(theirs).epsilon(1e-5));
    check_full_gradients(net, plain);
  });
}

TEST_CASE("without any gradient clipping fails on every rank - with one anywhere on none",
          "[runtime][clip]") {
  run_threads(3, [](World& world) {
    Net net = make_net();
    Options options;
    options.mesh = world.mesh();
    shard(net, options);
    const std::string message = message_of([&] { clip_grad_norm_(net, 1.0); });
    RANK_CHECK(message.find("no rank has a gradient") != std::string::npos, message);
    // Two elements of a bias lie on one rank alone; the gradients of all others are gone.
    backward(net, make_data());
    const auto named = net->named_parameters();
    for (const auto& param : named)
      if (param.key() != "head.bias") param.value().mutable_grad().reset();
    const double mine = named["head.bias"].grad().square().sum().item<double>();
    torch::Tensor all = torch::full({1}, mine, torch::kDouble);
    world.communicator()->all_reduce(all, Reduce::kSum, {});
    RANK_CHECK(clip_grad_norm_(net, 100.0).item<double>() ==
               Approx(std::sqrt(all.item<double>())).epsilon(1e-5));
  });
}

TEST_CASE("parameters of units over pairs of ranks are others on each pair", "[runtime][clip]") {
  const double p = GENERATE(1.0, 2.0, kInfinity);
  const Data data = make_data();
  // Per pair, the blocks' gradients of the pair's data; all others are means over all ranks.
  std::vector<Net> plain;
  for (int pair = 0; pair < 2; ++pair) {
    plain.push_back(make_net(2));
    const Data mine = part_of(data, pair, 2);
    torch::mse_loss(plain.back()->forward(mine.x), mine.y).backward();
  }
  std::vector<torch::Tensor> grads;
  for (const auto& param : plain[0]->named_parameters()) {
    const torch::Tensor here = param.value().grad();
    const torch::Tensor there = plain[1]->named_parameters()[param.key()].grad();
    if (param.key().starts_with("blocks0")) {
      grads.push_back(here);
      grads.push_back(there);
    } else {
      grads.push_back((here + there) / 2);
    }
  }
  std::vector<torch::Tensor> flat;
  for (const torch::Tensor& grad : grads) flat.push_back(grad.reshape({-1}));
  const double expected = torch::cat(flat).norm(p).item<double>();
  run_threads(4, [&](World& world) {
    Net net = make_net(2);
    Options options, inner;
    options.mesh = world.mesh();
    inner.mesh = DeviceMesh(world, {2, 2}, {"pair", "in_pair"}).sub(1);
    fully_shard(net->blocks[0], inner);
    fully_shard(net, options);
    backward(net, part_of(data, world.rank(), world.size()));
    const double norm = clip_grad_norm_(net, 1.0, p).item<double>();
    RANK_CHECK(norm == Approx(expected).epsilon(1e-5), fmt::format("{} {}", norm, expected));
  });
}

TEST_CASE("a replicated unit inside a sharded model counts once in the norm", "[runtime][clip]") {
  const double p = GENERATE(1.0, 2.0, kInfinity);
  run_threads(4, [&](World& world) {
    Net net = make_net(2), plain = make_net(2);
    Options options, inner;
    inner.mesh = options.mesh = world.mesh();
    inner.strategy = ShardingStrategy::kNoShard;
    fully_shard(net->blocks[0], inner);
    fully_shard(net, options);
    backward(net, make_data());
    backward(plain, make_data());
    const double ours = clip_grad_norm_(net, 0.1, p).item<double>();
    const double theirs = torch::nn::utils::clip_grad_norm_(plain->parameters(), 0.1, p);
    RANK_CHECK(ours == Approx(theirs).epsilon(1e-5), fmt::format("{} {}", ours, theirs));
  });
}

TEST_CASE("units over more ranks than the outermost one are not clipped with it",
          "[runtime][clip]") {
  run_threads(4, [](World& world) {
    Net net = make_net(2);
    Options options, inner;
    inner.mesh = world.mesh();
    options.mesh = DeviceMesh(world, {2, 2}, {"pair", "in_pair"}).sub(1);
    fully_shard(net->blocks[0], inner);
    fully_shard(net, options);
    backward(net, make_data());
    const std::string message = message_of([&] { clip_grad_norm_(net, 1.0); });
    RANK_CHECK(message.find("blocks0") != std::string::npos, message);
    RANK_CHECK(message.find("not all in the outermost unit's group") != std::string::npos, message);
  });
}

}  // namespace runtime_clip_test
