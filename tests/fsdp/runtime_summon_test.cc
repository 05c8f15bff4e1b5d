// Full parameters outside of forward: of one unit alone, in the stored dtype whatever was kept, and
// with gradients.
#include <fmt/format.h>

#include "fsdp_core/params/recycler.h"
#include "tests/fsdp/line_model.h"
#include "tests/fsdp/torch_and_catch.h"

namespace runtime_summon_test {

using namespace tessera::fsdp;
using namespace tessera::fsdp::test;

namespace {

std::string state_of(Net& net, const std::string& unit) {
  for (const auto& [name, state] : unit_states(net))
    if (name == unit) return state;
  return "";
}

}  // namespace

TEST_CASE("one unit alone is summoned - its parents and children stay sharded",
          "[runtime][summon]") {
  const bool root = GENERATE(true, false);
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  run_threads(3, [&](World& world) {
    Net net = make_net(2), plain = make_net(2);
    Options options;
    options.mesh = world.mesh();
    options.layout = layout;
    shard(net, options);
    SummonOptions alone;
    alone.recurse = false;
    const auto want = plain->named_parameters();
    {
      world.communicator()->reset_counts();
      const SummonFullParams full(root ? ModuleRef(net) : ModuleRef(net->blocks[1]), alone);
      RANK_CHECK(world.communicator()->counts().all_gathers == 1);
      for (const auto& param : net->named_parameters()) {
        const bool mine =
            root ? !param.key().starts_with("blocks") : param.key().starts_with("blocks1.");
        if (!mine) continue;
        RANK_CHECK(torch::equal(param.value(), want[param.key()]), param.key());
        const torch::NoGradGuard no_grad;
        param.value().add_(1);
      }
      RANK_CHECK(state_of(net, root ? "blocks1" : "") == "(Sharded, Idle, None)");
      const std::string message =
          message_of([&] { (root ? net->blocks[1]->a : net->head)->weight + 1; });
      RANK_CHECK(message.find(root ? "blocks1.a.weight" : "head.weight") != std::string::npos,
                 message);
      // Another unit may be summoned beside it, the same one not.
      const SummonFullParams other(net->blocks[0], alone);
      RANK_CHECK(torch::equal(net->blocks[0]->a->weight, plain->blocks[0]->a->weight));
    }
    const SummonFullParams full(net);
    for (const auto& param : net->named_parameters()) {
      const bool mine =
          root ? !param.key().starts_with("blocks") : param.key().starts_with("blocks1.");
      RANK_CHECK(torch::equal(param.value(), want[param.key()] + (mine ? 1 : 0)), param.key());
    }
  });
}

TEST_CASE("kept units in low precision are summoned in the stored dtype", "[runtime][summon]") {
  const bool recurse = GENERATE(true, false);
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  run_threads(2, [&](World& world) {
    Net net = make_net(2), plain = make_net(2);
    Options options;
    options.mesh = world.mesh();
    options.layout = layout;
    options.strategy = ShardingStrategy::kShardGradOp;
    options.mixed_precision.param_dtype = torch::kBFloat16;
    shard(net, options);
    const Data data = make_data();
    const torch::Tensor loss = net->forward(data.x).square().mean();  // keeps every unit
    RANK_CHECK(state_of(net, "").starts_with("(Unsharded"));
    SummonOptions summon;
    summon.recurse = recurse;
    {
      const SummonFullParams full(net, summon);
      RANK_CHECK(net->head->weight.scalar_type() == torch::kFloat);
      RANK_CHECK(torch::equal(net->head->weight, plain->head->weight));
    }
    RANK_CHECK(net->head->weight.scalar_type() == torch::kBFloat16);
    loss.backward();  // gathers again what the summon freed
    for (const auto& param : net->parameters()) RANK_CHECK(param.grad().defined());
  });
}

TEST_CASE("what a summon gathers is given back", "[runtime][summon]") {
  run_threads(1, [](World&) {
    World world = fake_world(1, 4);
    Net net = make_net(2);
    Options options;
    options.mesh = world.mesh();
    options.mixed_precision.param_dtype = torch::kBFloat16;
    shard(net, options);
    const auto before = recycler_counts().in_use;
    {
      const SummonFullParams full(net);
      RANK_CHECK(recycler_counts().in_use > before);
    }
    RANK_CHECK(recycler_counts().in_use == before);
  });
}

TEST_CASE("full gradients beside full parameters are undefined zeros or values",
          "[runtime][summon]") {
  run_threads(3, [](World& world) {
    Net net = make_net(2), plain = make_net(2);
    for (Net* each : {&net, &plain}) (*each)->stem->weight.set_requires_grad(false);
    Options options;
    options.mesh = world.mesh();
    shard(net, options);
    SummonOptions with_grads;
    with_grads.with_grads = true;
    {
      const SummonFullParams full(net, with_grads);
      for (const auto& param : net->parameters()) RANK_CHECK(!param.grad().defined());
    }
    const Data data = make_data();
    torch::mse_loss(net->forward(data.x), data.y).backward();
    torch::mse_loss(plain->forward(data.x), data.y).backward();
    // One rank alone clears one: the others' parts beside zeros.
    if (world.rank() == 0) net->named_parameters()["head.weight"].mutable_grad().reset();
    const SummonFullParams full(net, with_grads);
    RANK_CHECK(!net->stem->weight.grad().defined());
    RANK_CHECK(torch::allclose(net->stem->bias.grad(), plain->stem->bias.grad(), 1e-5, 1e-6));
    const torch::Tensor ours = net->head->weight.grad(), theirs = plain->head->weight.grad();
    const torch::Tensor same = torch::isclose(ours, theirs, 1e-5, 1e-6), zero = ours == 0;
    RANK_CHECK((same | zero).all().item<bool>());
    RANK_CHECK(zero.any().item<bool>());
  });
}

TEST_CASE("values set while parameters are kept in low precision are used",
          "[runtime][summon][precision]") {
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

}  // namespace runtime_summon_test
