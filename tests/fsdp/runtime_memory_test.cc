// Memory of a training step against the least that the schedule allows (L1): what is kept always,
// and at the worst moment the parameters of the unit at work and of the one gathered ahead, its
// gradients, and what the operators themselves need. Measured by an allocator that counts.
#include <algorithm>

#include "fsdp_core/params/recycler.h"
#include "fsdp_core/runtime/unit_groups.h"
#include "tests/fsdp/counting_memory.h"
#include "tests/fsdp/models.h"
#include "tests/fsdp/strategies.h"
#include "tests/fsdp/torch_and_catch.h"

namespace runtime_memory_test {

using namespace tessera::fsdp;
using namespace tessera::fsdp::test;

namespace {

constexpr int kRanks = 8, kMatrices = 4;
constexpr std::int64_t kWidth = 128;  // a matrix: 64 KiB; an activation: 512 bytes

struct LayerImpl : torch::nn::Module {
  explicit LayerImpl(std::int64_t hidden) {
    for (int i = 0; i < kMatrices; ++i)
      weights.push_back(register_parameter(
          "w" + std::to_string(i), torch::full(i % 2 ? std::vector<std::int64_t>{kWidth, hidden}
                                                     : std::vector<std::int64_t>{hidden, kWidth},
                                               1e-3)));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (const torch::Tensor& weight : weights) x = torch::nn::functional::linear(x, weight);
    return x;
  }
  std::vector<torch::Tensor> weights;
};
FSDP_MODULE(Layer);

struct StackImpl : torch::nn::Module {
  explicit StackImpl(const std::vector<std::int64_t>& hidden) {
    for (std::size_t i = 0; i < hidden.size(); ++i)
      layers.push_back(register_module("l" + std::to_string(i), Layer(hidden[i])));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (Layer& layer : layers) x = layer->forward(x);
    return x;
  }
  std::vector<Layer> layers;
};
FSDP_MODULE(Stack);

struct Case {
  const char* name;
  std::vector<std::int64_t> hidden;  // of each unit
  std::vector<bool> trains;
};

/// Bytes. Every hidden size divides by kRanks: nothing is padded. The root owns no parameter.
struct Bound {
  std::int64_t kept = 0, at_worst = 0;
};

Bound least(const Case& each, bool prefetch, bool per_parameter) {
  const auto bytes = [&](std::size_t i) { return 4 * kMatrices * kWidth * each.hidden[i]; };
  Bound bound;
  std::int64_t previous_bytes = 0;
  for (std::size_t i = 0; i < each.hidden.size(); ++i) {
    const std::int64_t shard = bytes(i) / kRanks;
    bound.kept += each.trains[i] ? 4 * shard : shard;  // parameter, gradient, two moments
    // Backward of unit i: the one before it is gathered ahead; autograd makes one matrix's gradient
    // before it is added to the buffer. All gradients lie in the buffer at once.
    std::int64_t now = bytes(i) + (prefetch ? previous_bytes : 0);
    if (each.trains[i]) now += bytes(i) + bytes(i) / kMatrices;
    if (per_parameter) now += bytes(i);  // the collective's own form of one unit
    bound.at_worst = std::max(bound.at_worst, now);
    previous_bytes = bytes(i);
  }
  return bound;
}

}  // namespace

TEST_CASE("peak memory is the least the schedule allows and steps repeat it", "[memory]") {
  const Case each = GENERATE(
      Case{"uniform", {128, 128, 128, 128, 128, 128}, {true, true, true, true, true, true}},
      Case{"unequal", {64, 192, 128, 256, 64, 128}, {true, true, true, true, true, true}},
      Case{"half frozen", {128, 256, 128, 256, 128, 256}, {false, true, false, true, false, true}});
  const bool per_parameter = GENERATE(false, true);
  const bool prefetch = GENERATE(true, false);
  CAPTURE(each.name, per_parameter, prefetch);

  const CountMemory counting;
  const World world = fake_world(3, kRanks);
  Options options;
  options.mesh = world.mesh();
  options.layout = per_parameter ? MemoryLayout::kPerParameter : MemoryLayout::kFlat;
  options.backward_prefetch = prefetch ? BackwardPrefetch::kPre : BackwardPrefetch::kNone;
  Stack stack(each.hidden);
  for (std::size_t i = 0; i < each.hidden.size(); ++i) {
    for (torch::Tensor& weight : stack->layers[i]->parameters())
      weight.set_requires_grad(each.trains[i]);
    fully_shard(stack->layers[i], options);
  }
  fully_shard(stack, options);
  torch::optim::Adam optimizer(stack->parameters(), torch::optim::AdamOptions(1e-3));

  std::vector<std::int64_t> peaks;
  std::vector<std::size_t> asked;
  for (int step = 0; step < 8; ++step) {
    peak = live.load();
    const std::size_t before = recycler_counts().allocations;
    // Gradients stay from step to step, as the bound counts them.
    const torch::Tensor x = torch::ones({1, kWidth}).set_requires_grad(true);
    stack->forward(x).sum().backward();
    peaks.push_back(peak);
    asked.push_back(recycler_counts().allocations - before);
    optimizer.step();
  }
  const Bound bound = least(each, prefetch, per_parameter);
  const auto ratio =
      static_cast<double>(peaks.back()) / static_cast<double>(bound.kept + bound.at_worst);
  INFO("peak " << peaks.back() << " bytes, bound " << bound.kept + bound.at_worst << ", ratio "
               << ratio);
  WARN(each.name << (per_parameter ? ", rows" : ", flat") << (prefetch ? ", prefetch" : "")
                 << ": peak / bound " << ratio);
  CHECK(ratio <= 1.02);
  CHECK(ratio >= 0.7);
  for (std::size_t step = 3; step < peaks.size(); ++step) CHECK(peaks[step] == peaks[2]);
  for (std::size_t step = 3; step < asked.size(); ++step) CHECK(asked[step] == 0);
}

TEST_CASE("from the third step on sharding asks for no memory of its own", "[memory]") {
  const std::vector<std::int64_t> hidden =
      GENERATE(std::vector<std::int64_t>{128, 128, 128, 128},
               std::vector<std::int64_t>{64, 192, 128, 256, 64});
  const bool per_parameter = GENERATE(false, true);
  const auto strategy = GENERATE(from_range(all_strategies()));
  const bool ahead = GENERATE(false, true);
  CAPTURE(hidden.size(), per_parameter, strategy_name(strategy), ahead);

  const CountMemory counting;
  const World world = fake_world(3, kRanks);
  Options options;
  options.strategy = strategy;
  options.mesh = strategy_of(strategy).hybrid()
                     ? DeviceMesh(world, {2, kRanks / 2}, {"replicate", "shard"})
                     : world.mesh();
  options.layout = per_parameter ? MemoryLayout::kPerParameter : MemoryLayout::kFlat;
  options.forward_prefetch = ahead;
  options.backward_prefetch = ahead ? BackwardPrefetch::kPost : BackwardPrefetch::kPre;
  // Tensors of all kinds, of operators and the optimizer too: those a plain module asks for as
  // well.
  const auto asked_by_step = [&](bool sharded) {
    Stack stack(hidden);
    if (sharded) {
      for (Layer& layer : stack->layers) fully_shard(layer, options);
      fully_shard(stack, options);
    }
    torch::optim::Adam optimizer(stack->parameters(), torch::optim::AdamOptions(1e-3));
    std::vector<std::int64_t> out;
    for (int step = 0; step < 7; ++step) {
      asks = 0;
      const torch::Tensor x = torch::ones({1, kWidth}).set_requires_grad(true);
      stack->forward(x).sum().backward();
      optimizer.step();
      optimizer.zero_grad();
      out.push_back(asks);
    }
    return out;
  };
  const std::vector<std::int64_t> plain = asked_by_step(false), sharded = asked_by_step(true);
  for (std::size_t step = 3; step < plain.size(); ++step) CHECK(sharded[step] <= plain[step]);
}

TEST_CASE("kinds of steps that come in turn ask for no memory of their own either", "[memory]") {
  enum class Turn { kTrain, kAccumulate, kOther, kEvaluate };
  struct Pattern {
    const char* name;
    std::vector<Turn> turns;
  };
  const Pattern pattern =
      GENERATE(Pattern{"every second backward reduces", {Turn::kAccumulate, Turn::kTrain}},
               Pattern{"every fourth backward reduces",
                       {Turn::kAccumulate, Turn::kAccumulate, Turn::kAccumulate, Turn::kTrain}},
               Pattern{"two models in turn", {Turn::kTrain, Turn::kOther}},
               Pattern{"two models, of which one accumulates",
                       {Turn::kAccumulate, Turn::kTrain, Turn::kOther}},
               Pattern{"an evaluation in every third step",
                       {Turn::kTrain, Turn::kTrain, Turn::kTrain, Turn::kEvaluate}});
  const bool per_parameter = GENERATE(false, true);
  const auto strategy = GENERATE(from_range(all_strategies()));
  CAPTURE(pattern.name, per_parameter, strategy_name(strategy));

  const CountMemory counting;
  const World world = fake_world(3, kRanks);
  Options options;
  options.strategy = strategy;
  options.mesh = strategy_of(strategy).hybrid()
                     ? DeviceMesh(world, {2, kRanks / 2}, {"replicate", "shard"})
                     : world.mesh();
  options.layout = per_parameter ? MemoryLayout::kPerParameter : MemoryLayout::kFlat;

  struct Model {
    Stack stack;
    std::unique_ptr<torch::optim::Adam> optimizer;
    explicit Model(const std::vector<std::int64_t>& hidden, const Options* options)
        : stack(hidden) {
      if (options != nullptr) {
        for (Layer& layer : stack->layers) fully_shard(layer, *options);
        fully_shard(stack, *options);
      }
      optimizer = std::make_unique<torch::optim::Adam>(stack->parameters(),
                                                       torch::optim::AdamOptions(1e-3));
    }
  };
  struct Cycle {
    std::int64_t asks, peak;
  };
  const auto cycles_of = [&](bool sharded) {
    Model one({64, 192, 128, 256}, sharded ? &options : nullptr);
    Model two({32, 288, 96}, sharded ? &options : nullptr);
    const auto backward = [&](Model& model) {
      const torch::Tensor x = torch::ones({1, kWidth}).set_requires_grad(true);
      model.stack->forward(x).sum().backward();
    };
    std::vector<Cycle> out;
    for (int cycle = 0; cycle < 8; ++cycle) {
      asks = 0;
      peak = live.load();
      for (const Turn turn : pattern.turns) {
        if (turn == Turn::kAccumulate) {
          std::optional<NoSync> no_sync;
          if (sharded) no_sync.emplace(one.stack);
          backward(one);
          continue;
        }
        if (turn == Turn::kEvaluate) {
          const torch::NoGradGuard no_grad;
          one.stack->forward(torch::ones({1, kWidth}));
          continue;
        }
        Model& model = turn == Turn::kOther ? two : one;
        backward(model);
        model.optimizer->step();
        model.optimizer->zero_grad();
      }
      out.push_back({asks, peak});
    }
    return out;
  };
  const std::vector<Cycle> plain = cycles_of(false), sharded = cycles_of(true);
  // Twice each kind to know them; an evaluation belongs to the step after it.
  for (std::size_t cycle = 3; cycle < plain.size(); ++cycle) {
    CAPTURE(cycle);
    CHECK(sharded[cycle].asks <= plain[cycle].asks);
    CHECK(sharded[cycle].peak == sharded[3].peak);
  }
}

TEST_CASE("memory of gathers is used again and given back when asked", "[memory]") {
  release_cached_memory();
  const RecyclerCounts before = recycler_counts();
  c10::Allocator* memory = buffer_allocator(c10::kCPU);
  void* first = nullptr;
  {
    const c10::DataPtr a = memory->allocate(1 << 20);
    first = a.get();
    CHECK(recycler_counts().in_use == before.in_use + (1 << 20));
  }
  CHECK(recycler_counts().free == 1 << 20);
  { CHECK(memory->allocate(1 << 20).get() == first); }
  // Nothing free fits: what is free goes back before more is asked for.
  const c10::DataPtr larger = memory->allocate(3 << 20);
  CHECK(recycler_counts().free == 0);
  { const c10::DataPtr small = memory->allocate(100); }
  CHECK(recycler_counts().free == 100);
  release_cached_memory();
  CHECK(recycler_counts().free == 0);
  CHECK(recycler_counts().in_use == before.in_use + (3 << 20));
}

}  // namespace runtime_memory_test
