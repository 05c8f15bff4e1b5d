// When a unit's backward is complete: several uses, unused parameters, recomputation, frozen units.
#include <fmt/format.h>

#include "tests/fsdp/beside_plain.h"
#include "tests/fsdp/full_gradients.h"
#include "tests/fsdp/torch_and_catch.h"

namespace runtime_backward_test {

using namespace tessera::fsdp;
using namespace tessera::fsdp::test;

namespace {

using Body = std::function<torch::Tensor(Net&, const Data&)>;

/// Runs `body` (a loss) on both and compares gradients. Every rank has the same data: the mean is
/// the plain gradient.
void compare(const Body& body, const Options& common = {}, int world_size = 3) {
  run_threads(world_size, [&](World& world) {
    auto [options, net, plain, data] = BesidePlain(world, common);
    body(net, data).backward();
    body(plain, data).backward();
    for (const auto& [name, state] : unit_states(net))
      RANK_CHECK(state == "(Sharded, Idle, None)", name + state);
    check_full_gradients(net, plain);
  });
}

}  // namespace

TEST_CASE("a module called twice in one forward", "[runtime][backward]") {
  compare([](Net& net, const Data& data) {
    auto x = net->blocks[0]->forward(data.x);
    return torch::mse_loss(net->forward(x + net->blocks[0]->forward(x)), data.y);
  });
}

TEST_CASE("forward - forward - backward - backward", "[runtime][backward]") {
  run_threads(2, [](World& world) {
    auto [options, net, plain, data] = BesidePlain(world);
    auto run = [&](Net& n) {
      auto first = torch::mse_loss(n->forward(data.x), data.y);
      auto second = n->forward(data.x * 2).square().mean();
      first.backward();
      second.backward();
    };
    run(net);
    run(plain);
    check_full_gradients(net, plain);
  });
}

TEST_CASE("an output that the loss does not use", "[runtime][backward]") {
  compare([](Net& net, const Data& data) {
    net->blocks[2]->forward(data.x);  // thrown away
    return torch::mse_loss(net->forward(data.x), data.y);
  });
}

TEST_CASE("an input that requires grad - and one that is changed in place", "[runtime][backward]") {
  compare([](Net& net, const Data& data) {
    auto x = data.x.clone().set_requires_grad(true);
    auto loss = torch::mse_loss(net->forward(x), data.y);
    return loss;
  });
  compare([](Net& net, const Data& data) {
    auto x = (data.x * 1.0).set_requires_grad(true) * 2;
    return torch::mse_loss(net->forward(x), data.y);
  });
}

TEST_CASE("gradients add up over micro-batches - with and without synchronisation",
          "[runtime][backward]") {
  const bool sync = GENERATE(true, false);
  const auto strategy = GENERATE(ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp,
                                 ShardingStrategy::kNoShard);
  CAPTURE(sync, static_cast<int>(strategy));
  run_threads(2, [&](World& world) {
    auto [options, net, plain, data] = BesidePlain(world, {.strategy = strategy});
    for (int micro = 0; micro < 3; ++micro) {
      std::optional<NoSync> no_sync;
      if (!sync && micro < 2) no_sync.emplace(net);
      torch::mse_loss(net->forward(data.x * (micro + 1)), data.y).backward();
      torch::mse_loss(plain->forward(data.x * (micro + 1)), data.y).backward();
    }
    check_full_gradients(net, plain);
  });
}

TEST_CASE("frozen units - units partly frozen - and freezing that changes", "[runtime][backward]") {
  run_threads(2, [](World& world) {
    Net net = make_net(), plain = make_net();
    auto freeze = [](Net& n) {
      for (auto& p : n->blocks[1]->parameters()) p.set_requires_grad(false);
      n->blocks[0]->a->weight.set_requires_grad(false);
    };
    freeze(net);
    freeze(plain);
    Options options;
    options.mesh = world.mesh();
    shard(net, options);
    const Data data = make_data();
    auto step = [&](Net& n) { torch::mse_loss(n->forward(data.x), data.y).backward(); };
    step(net);
    step(plain);
    check_full_gradients(net, plain);
    for (auto* n : {&net, &plain})
      for (auto& p : (*n)->parameters()) {
        p.set_requires_grad(true);
        p.mutable_grad().reset();
      }
    step(net);
    step(plain);
    check_full_gradients(net, plain);
  });
}

TEST_CASE("touching a sharded parameter names it", "[runtime][backward]") {
  run_threads(2, [](World& world) {
    Net net = make_net();
    Options options;
    options.mesh = world.mesh();
    shard(net, options);
    const Data data = make_data();
    net->forward(data.x).sum().backward();
    RANK_CHECK(message_of([&] { net->blocks[1]->a->forward(data.x); }).find("blocks1.a.") !=
               std::string::npos);
    // And the optimizer that was built from full parameters is refused.
    std::vector<torch::Tensor> full = {net->blocks[1]->a->weight};
    torch::optim::SGD early(full, 0.1);
    RANK_CHECK(message_of([&] { check_optimizer(early, net); }).find("blocks1.a.weight") !=
               std::string::npos);
  });
}

}  // namespace runtime_backward_test
