// apply over a sharded module, and units gathered ahead by explicit lists.
#include <fmt/format.h>

#include <set>

#include "tests/fsdp/beside_plain.h"
#include "tests/fsdp/full_gradients.h"
#include "tests/fsdp/torch_and_catch.h"

namespace runtime_apply_test {

using namespace tessera::fsdp;
using namespace tessera::fsdp::test;

namespace {

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// An initialisation that depends on the whole tensor.
void initialise(torch::nn::Module& module) {
  torch::NoGradGuard no_grad;
  if (auto* linear = dynamic_cast<torch::nn::LinearImpl*>(&module)) {
    linear->weight.copy_(torch::arange(linear->weight.numel()).view(linear->weight.sizes()));
    linear->weight.div_(linear->weight.norm());
    linear->bias.fill_(0.25);
  }
}

void check_equal(Net& net, Net& plain) {
  SummonFullParams full(net);
  const auto want = plain->named_parameters();
  for (const auto& param : net->named_parameters())
    RANK_CHECK(torch::equal(param.value(), want[param.key()]), param.key());
}

using Gathers = std::pair<std::string, std::string>;

/// The units that gathered, in order, of a forward and of a backward.
Gathers gathers(World& world, Net& net, const Data& data) {
  std::string text;
  world.communicator()->observe([&](const CommRecord& record) {
    if (record.op == CommOp::kAllGather) text += record.unit.empty() ? "root " : record.unit + " ";
  });
  auto loss = torch::mse_loss(net->forward(data.x), data.y);
  const std::string forward = std::exchange(text, {});
  loss.backward();
  world.communicator()->observe({});
  return {forward, text};
}

}  // namespace

TEST_CASE("apply initialises as on the plain module - one unit at a time", "[runtime][apply]") {
  const int world_size = GENERATE(1, 2, 3, 4);
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  const auto strategy = GENERATE(ShardingStrategy::kFullShard, ShardingStrategy::kNoShard);
  CAPTURE(world_size, static_cast<int>(layout), strategy_name(strategy));
  run_threads(world_size, [&](World& world) {
    auto [options, net, plain, data] = BesidePlain(world, {.strategy = strategy, .layout = layout});
    plain->apply(initialise);
    std::vector<torch::nn::Module*> order;
    tessera::fsdp::apply(net, [&](torch::nn::Module& module) {
      initialise(module);
      order.push_back(&module);
      int summoned = 0;
      for (const auto& [name, state] : unit_states(net)) summoned += has(state, "Summoned");
      RANK_CHECK(summoned == 1);
    });
    check_equal(net, plain);
    // Each module once, children before the module that holds them.
    RANK_CHECK(order.size() == 1 + 3 * 3 + 2);
    RANK_CHECK(std::set<torch::nn::Module*>(order.begin(), order.end()).size() == order.size());
    RANK_CHECK(order.back() == net.ptr().get());
    RANK_CHECK(order[2] == net->blocks[0].ptr().get());
    backward(net, data);
    RANK_CHECK(has(message_of([&] {
                     tessera::fsdp::apply(
                         net, [&](torch::nn::Module&) { SummonFullParams nested(net); });
                   }),
                   "summon"));
  });
}

TEST_CASE("apply on an inner unit leaves the tree as it was - and reaches modules outside of units",
          "[runtime][apply]") {
  run_threads(2, [](World& world) {
    auto [options, net, plain, data] = BesidePlain(world);
    plain->blocks[1]->apply(initialise);
    tessera::fsdp::apply(net->blocks[1], initialise);  // before the root is known
    check_equal(net, plain);
    RANK_CHECK(torch::allclose(net->forward(data.x), plain->forward(data.x), 1e-5, 1e-6));

    torch::nn::Sequential outside(torch::nn::Linear(2, 2), Block(4, 4));
    fully_shard(outside->ptr(1), options);
    int called = 0;
    tessera::fsdp::apply(ModuleRef(outside.ptr()), [&](torch::nn::Module& module) {
      initialise(module);
      ++called;
    });
    RANK_CHECK(called == 5);
    RANK_CHECK(outside->ptr<torch::nn::LinearImpl>(0)->bias[0].item<float>() == 0.25f);
  });
}

TEST_CASE("a function that throws in apply is told to every rank", "[runtime][apply]") {
  run_threads(3, [](World& world) {
    Net net = make_net();
    Options options;
    options.mesh = world.mesh();
    shard(net, options);
    const std::string message = message_of([&] {
      tessera::fsdp::apply(net, [&](torch::nn::Module& module) {
        if (world.rank() == 1 && &module == net->blocks[0]->b.get())
          throw std::runtime_error("no initialisation");
      });
    });
    RANK_CHECK(has(message, "no initialisation"), message);
    World(world).reset();
    reset(net);
    const Data data = make_data();
    torch::mse_loss(net->forward(data.x), data.y).backward();
  });
}

TEST_CASE("units are gathered ahead in the order of the lists", "[runtime][prefetch]") {
  run_threads(2, [](World& world) {
    auto [options, net, plain, data] = BesidePlain(world);
    torch::mse_loss(net->forward(data.x), data.y).backward();
    for (auto& param : net->parameters()) param.mutable_grad().reset();
    auto refused = [&](const std::function<void()>& f, const char* word) {
      RANK_CHECK(has(message_of(f), word), message_of(f));
    };
    refused([&] { set_modules_to_forward_prefetch(net, {ModuleRef(net->stem)}); }, "no unit");
    refused([&] { set_modules_to_backward_prefetch(ModuleRef(net->head), {}); }, "no unit");
    refused([&] { set_modules_to_forward_prefetch(net, {net}); }, "itself");

    RANK_CHECK(gathers(world, net, data) ==
               Gathers("root blocks0 blocks1 blocks2 ", "blocks2 blocks1 blocks0 "));
    for (auto& param : net->parameters()) param.mutable_grad().reset();
    set_modules_to_forward_prefetch(net, {net->blocks[2], net->blocks[0]});
    set_modules_to_forward_prefetch(net->blocks[0], {net->blocks[2], net->blocks[1]});
    set_modules_to_backward_prefetch(net, {net->blocks[0], net->blocks[2]});
    RANK_CHECK(gathers(world, net, data) ==
               Gathers("root blocks2 blocks0 blocks1 ", "blocks0 blocks2 blocks1 "));
    torch::mse_loss(plain->forward(data.x), data.y).backward();
    check_full_gradients(net, plain);
    set_modules_to_forward_prefetch(net, {});
    set_modules_to_forward_prefetch(net->blocks[0], {});
    set_modules_to_backward_prefetch(net, {});
    RANK_CHECK(gathers(world, net, data).second == "blocks2 blocks1 blocks0 ");
  });
}

TEST_CASE("a unit gathered ahead that is not used costs memory only", "[runtime][prefetch]") {
  run_threads(2, [](World& world) {
    Net net = make_net();
    Block extra(19, 33);
    Options options;
    options.mesh = world.mesh();
    net->register_module("extra", extra);  // in the tree, never called
    fully_shard(extra, options);
    shard(net, options);
    set_modules_to_forward_prefetch(net, {extra});
    const Data data = make_data();
    for (int step = 0; step < 3; ++step) {
      torch::mse_loss(net->forward(data.x), data.y).backward();
      for (const auto& [name, state] : unit_states(net))
        RANK_CHECK(state == "(Sharded, Idle, None)", name + state);
    }
  });
}

}  // namespace runtime_apply_test
