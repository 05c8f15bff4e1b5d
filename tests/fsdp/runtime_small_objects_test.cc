// Small objects: what the runtime asks operator new for in a training step, beside what the plain
// module's step asks for. From the third step on nothing of its own: all that is left is what
// autograd's interface asks of whoever hooks a tensor.
#include <fmt/format.h>
#include <tessera/fsdp.h>

#include "tests/fsdp/counting_new.h"
#include "tests/fsdp/strategies.h"
#include "tests/fsdp/torch_and_catch.h"

namespace runtime_small_objects_test {

using namespace tessera::fsdp;
using namespace tessera::fsdp::test;

namespace {

constexpr int kUnits = 8, kParameters = 10, kSteps = 8;
constexpr std::int64_t kNumel = 64;

struct SmallBlockImpl : torch::nn::Module {
  SmallBlockImpl() {
    for (int p = 0; p < kParameters; ++p)
      weights.push_back(register_parameter("w" + std::to_string(p), torch::ones({kNumel})));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (const torch::Tensor& weight : weights) x = x * weight;
    return x;
  }
  std::vector<torch::Tensor> weights;
};
FSDP_MODULE(SmallBlock);

struct SmallChainImpl : torch::nn::Module {
  SmallChainImpl() {
    for (int u = 0; u < kUnits; ++u)
      blocks.push_back(register_module("b" + std::to_string(u), SmallBlock()));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (SmallBlock& block : blocks) x = block->forward(x);
    return x;
  }
  std::vector<SmallBlock> blocks;
};
FSDP_MODULE(SmallChain);

struct Step {
  NewCounts counts;
  std::string callers;
};

std::vector<Step> steps_of(const Options* options) {
  SmallChain chain;
  if (options != nullptr) {
    for (SmallBlock& block : chain->blocks) fully_shard(block, *options);
    fully_shard(chain, *options);
  }
  std::vector<torch::Tensor> parameters = chain->parameters();
  const torch::Tensor x = torch::ones({kNumel}).set_requires_grad(true);
  std::vector<Step> steps;
  for (int step = 0; step < kSteps; ++step) {
    const CountNew counting;
    chain->forward(x).sum().backward();
    for (torch::Tensor& parameter : parameters) parameter.mutable_grad().reset();
    steps.push_back({counting.counts(), counting.own_callers()});
  }
  return steps;
}

}  // namespace

TEST_CASE("from the third step on sharding makes no small objects of its own", "[memory]") {
  const auto strategy = GENERATE(from_range(all_strategies()));
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  const bool ahead = GENERATE(false, true);
  CAPTURE(strategy_name(strategy), static_cast<int>(layout), ahead);
  const World world = fake_world(3, 8);
  Options options;
  options.strategy = strategy;
  options.layout = layout;
  options.mesh = strategy_of(strategy).hybrid() ? DeviceMesh(world, {2, 4}, {"replicate", "shard"})
                                                : world.mesh();
  options.forward_prefetch = ahead;
  options.backward_prefetch = ahead ? BackwardPrefetch::kPost : BackwardPrefetch::kPre;

  const std::vector<Step> plain = steps_of(nullptr), sharded = steps_of(&options);
  // Each tensor between two units, the first one's input and the last one's output are hooked: a
  // node's list of hooks, and the list of gradients that a hook returns, are autograd's.
  constexpr std::int64_t kAutograd = 2 * (kUnits + 1);
  // A block that a stream gives back late is entered anew, a few objects in one step or another:
  // what every step asks for is what the least of them does.
  constexpr std::int64_t kLate = kUnits;
  std::int64_t least_own = INT64_MAX, least_all = INT64_MAX;
  // Gathering ahead begins in the second step, with the order of the first: all is a step later.
  for (std::size_t step = ahead ? 4 : 3; step < plain.size(); ++step) {
    const std::int64_t added = sharded[step].counts.own - plain[step].counts.own;
    INFO("step " << step << ": " << sharded[step].counts.all << " in all, a plain module "
                 << plain[step].counts.all << "; of its own " << added << "\n"
                 << sharded[step].callers);
    CHECK(added <= kAutograd + kLate);
    least_own = std::min(least_own, added);
    least_all = std::min(least_all, sharded[step].counts.all);
  }
  CHECK(least_own <= kAutograd);
  if (layout == MemoryLayout::kFlat) CHECK(least_all <= plain.back().counts.all);
}

TEST_CASE("the count of small objects sees what this program asks for", "[memory]") {
  const CountNew counting;
  const NewCounts before = counting.counts();
  const auto object = std::make_unique<std::int64_t>(1);
  const std::string text(static_cast<std::size_t>(*object) + 99, 'x');  // asked for by libstdc++
  CHECK(counting.counts().own >= before.own + 2);
  const NewCounts between = counting.counts();
  const torch::Tensor tensor = torch::ones({4});
  const NewCounts after = counting.counts();
  CHECK(after.all > between.all);
  CHECK(after.all - between.all > after.own - between.own);
}

}  // namespace runtime_small_objects_test
