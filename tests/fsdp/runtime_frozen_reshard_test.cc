// Which units are sharded again while backward still runs, and which only at its end: counted, over
// freezing that changes.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>

#include "tests/fsdp/beside_plain.h"
#include "tests/fsdp/full_gradients.h"
#include "tests/fsdp/torch_and_catch.h"

namespace runtime_frozen_reshard_test {

using namespace tessera::fsdp;
using namespace tessera::fsdp::test;

namespace {

constexpr int kFrozenDepth = 6;

void freeze_even(Net& net, bool frozen) {
  for (std::size_t i = 0; i < net->blocks.size(); i += 2)
    for (auto& param : net->blocks[i]->parameters()) param.set_requires_grad(!frozen);
  for (auto& param : net->stem->parameters()) param.set_requires_grad(false);
}

/// The blocks whose parameters are gathered.
std::set<std::string> gathered_blocks(Net& net) {
  std::set<std::string> out;
  for (const auto& [name, state] : unit_states(net))
    if (!name.empty() && !state.starts_with("(Sharded")) out.insert(name);
  return out;
}

/// What is gathered when the last reduction of a block is issued, and when the model's input has
/// its gradient.
struct LastMoments {
  std::set<std::string> reduction, input;
  int reductions = 0, inputs = 0;
};

LastMoments backward_of(World& world, Net& net, const Data& data, bool input_grad) {
  LastMoments out;
  torch::Tensor x = data.x.clone().set_requires_grad(input_grad) * 1.0;
  if (input_grad)
    x.register_hook([&](const torch::Tensor&) {
      out.input = gathered_blocks(net);
      ++out.inputs;
    });
  const torch::Tensor loss = torch::mse_loss(net->forward(x), data.y);
  world.communicator()->observe([&](const CommRecord& record) {
    if (record.op != CommOp::kReduceScatter || record.unit.empty()) return;
    out.reduction = gathered_blocks(net);
    ++out.reductions;
  });
  loss.backward();
  world.communicator()->observe({});
  return out;
}

}  // namespace

TEST_CASE("every unit is resharded as soon as no gradient needs it, frozen or not",
          "[runtime][frozen]") {
  const auto strategy = GENERATE(ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp);
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  const bool input_grad = GENERATE(false, true);
  const bool unfreeze = GENERATE(false, true);
  CAPTURE(strategy_name(strategy), layout == MemoryLayout::kFlat, input_grad, unfreeze);
  run_threads(2, [&](World& world) {
    Options options;
    options.mesh = world.mesh();
    options.strategy = strategy;
    options.layout = layout;
    Net net = make_net(kFrozenDepth), plain = make_net(kFrozenDepth);
    freeze_even(net, true);
    freeze_even(plain, true);
    shard(net, options);
    const Data data = make_data();
    torch::optim::Adam ours(net->parameters(), 1e-2), theirs(plain->parameters(), 1e-2);
    for (int step = 0; step < 4; ++step) {
      if (step == 2) {
        const torch::NoGradGuard evaluation;
        net->forward(data.x);
        if (unfreeze) {
          freeze_even(net, false);
          freeze_even(plain, false);
        }
      }
      ours.zero_grad();
      theirs.zero_grad();
      const LastMoments last = backward_of(world, net, data, input_grad);
      backward(plain, data);
      const std::string where = fmt::format("step {}", step);
      const bool first_trains = unfreeze && step >= 2;
      RANK_CHECK(last.inputs == (input_grad ? 1 : 0), where);
      RANK_CHECK(last.reductions == (first_trains ? kFrozenDepth : kFrozenDepth / 2), where);
      RANK_CHECK(last.input.empty(), where + fmt::format(": {}", fmt::join(last.input, " ")));
      // A frozen first block comes after the last that is reduced, where a gradient reaches it.
      const bool one_left = input_grad && !first_trains;
      RANK_CHECK(
          last.reduction == (one_left ? std::set<std::string>{"blocks0"} : std::set<std::string>{}),
          where + fmt::format(": {}", fmt::join(last.reduction, " ")));
      for (const auto& [name, state] : unit_states(net))
        RANK_CHECK(state == "(Sharded, Idle, None)", where + name + state);
      check_full_gradients(net, plain, where);
      ours.step();
      theirs.step();
    }
    for (const auto& param : net->named_parameters())
      RANK_CHECK(param.value().requires_grad() ==
                     (!param.key().starts_with("stem") &&
                      (unfreeze || param.key()[6] % 2 != 0 || param.key().starts_with("head"))),
                 param.key());
  });
}

}  // namespace runtime_frozen_reshard_test
