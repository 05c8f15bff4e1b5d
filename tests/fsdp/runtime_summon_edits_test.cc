// Edits of summoned parameters by some ranks alone: each rank's own part is what persists. And the
// parameters that a unit's own module holds, without a child.
#include <fmt/format.h>

#include "fsdp_core/runtime/unit_groups.h"
#include "tests/fsdp/full_gradients.h"
#include "tests/fsdp/models.h"
#include "tests/fsdp/torch_and_catch.h"

namespace runtime_summon_edits_test {

using namespace tessera::fsdp;
using namespace tessera::fsdp::test;

TEST_CASE("of an edit by one rank its own part persists on every rank", "[runtime][summon]") {
  const auto strategy = GENERATE(ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp);
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  const int editor = GENERATE(0, 2);
  const bool on_host = GENERATE(false, true);
  CAPTURE(strategy_name(strategy), layout == MemoryLayout::kFlat, editor, on_host);
  run_threads(3, [&](World& world) {
    Net net = make_net(2), plain = make_net(2);
    Options options;
    options.mesh = world.mesh();
    options.strategy = strategy;
    options.layout = layout;
    shard(net, options);
    SummonOptions summon;
    summon.offload_to_cpu = on_host;
    std::vector<std::int64_t> mine;  // elements of each parameter in the editor's shard
    for (const torch::Tensor& param : net->parameters()) {
      torch::Tensor numel = torch::full({1}, param.numel());
      world.communicator()->broadcast(numel, editor, {});
      mine.push_back(numel.item<std::int64_t>());
    }
    {
      const SummonFullParams full(net, summon);
      const torch::NoGradGuard no_grad;
      if (world.rank() == editor)
        for (torch::Tensor& param : net->parameters()) param.fill_(7);
    }
    const SummonFullParams full(net);
    const auto ours = net->parameters(), theirs = plain->parameters();
    for (std::size_t p = 0; p < ours.size(); ++p) {
      const torch::Tensor edited = ours[p] == 7;
      RANK_CHECK(edited.sum().item<std::int64_t>() == mine[p], std::to_string(p));
      RANK_CHECK(torch::equal(torch::where(edited, theirs[p], ours[p]), theirs[p]),
                 std::to_string(p));
    }
  });
}

TEST_CASE("a unit without children shards its own weight and bias", "[runtime][summon]") {
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  run_threads(2, [&](World& world) {
    const auto make = [] {
      const std::lock_guard lock(generator_mutex());
      torch::manual_seed(1);
      return Holder<torch::nn::LinearImpl>(4, 6);
    };
    Holder<torch::nn::LinearImpl> net = make(), plain = make();
    Options options;
    options.mesh = world.mesh();
    options.layout = layout;
    fully_shard(net, options);
    std::int64_t held = 0;
    for (const auto& param : net->named_parameters()) {
      RANK_CHECK(param.key() == "weight" || param.key() == "bias", param.key());
      held += param.value().numel();
    }
    RANK_CHECK(held == (4 * 6 + 6) / 2);
    const SummonFullParams full(net);
    RANK_CHECK(torch::equal(net->weight, plain->weight) && torch::equal(net->bias, plain->bias));
  });
}

TEST_CASE("a summon inside forward or backward is refused and changes nothing",
          "[runtime][summon]") {
  struct PeekImpl : torch::nn::Module {
    torch::nn::Linear inner{nullptr};
    std::function<void()> peek;
    PeekImpl() { inner = register_module("inner", torch::nn::Linear(5, 5)); }
    torch::Tensor forward(torch::Tensor x) {
      if (peek) peek();
      x = torch::tanh(inner->forward(x));
      if (peek) x.register_hook([this](const torch::Tensor&) { peek(); });
      return inner->forward(x);
    }
  };
  run_threads(2, [](World& world) {
    const auto make = [] {
      const std::lock_guard lock(generator_mutex());
      torch::manual_seed(2);
      return Holder<PeekImpl>();
    };
    Holder<PeekImpl> net = make(), plain = make();
    Options options;
    options.mesh = world.mesh();
    fully_shard(net, options);
    std::vector<std::string> messages;
    net->peek = [&] { messages.push_back(message_of([&] { SummonFullParams full(net); })); };
    const torch::Tensor x = torch::ones({2, 5});
    for (int step = 0; step < 2; ++step) {
      net->forward(x).sum().backward();
      plain->forward(x).sum().backward();
    }
    RANK_CHECK(messages.size() == 4);
    for (const std::string& message : messages)
      RANK_CHECK(message.find("SummonFullParams inside forward, backward") != std::string::npos,
                 message);
    net->peek = {};
    check_full_gradients(net, plain);
  });
}

}  // namespace runtime_summon_edits_test
