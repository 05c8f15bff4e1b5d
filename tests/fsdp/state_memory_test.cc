// Memory of state dicts, measured by an allocator that counts: beside what the state itself holds,
// FULL takes no more than one unit, whatever the number of units, and other ranks than the first
// nothing else.
#include "tests/fsdp/counting_memory.h"
#include "tests/fsdp/models.h"
#include "tests/fsdp/torch_and_catch.h"

namespace state_memory_test {

using namespace tessera::fsdp;
using namespace tessera::fsdp::test;

namespace {

constexpr int kRanks = 8;
constexpr std::int64_t kWidth = 128, kBytes = kWidth * kWidth * 4, kMatrices = 4;
constexpr std::int64_t kUnit = kMatrices * kBytes;

struct PileImpl : torch::nn::Module {
  PileImpl() {
    for (int i = 0; i < kMatrices; ++i)
      weights.push_back(register_parameter("w" + std::to_string(i),
                                           torch::full({kWidth, kWidth}, 1e-3 * (i + 1))));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (const torch::Tensor& weight : weights) x = torch::linear(x, weight);
    return x;
  }
  std::vector<torch::Tensor> weights;
};
FSDP_MODULE(Pile);

struct TowerImpl : torch::nn::Module {
  explicit TowerImpl(int units) {
    for (int i = 0; i < units; ++i)
      piles.push_back(register_module("l" + std::to_string(i), Pile()));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (Pile& pile : piles) x = pile->forward(x);
    return x;
  }
  std::vector<Pile> piles;
};
FSDP_MODULE(Tower);

/// Bytes of the state's own pieces that are not the model's or the optimizer's.
std::int64_t copied(const tessera::LiveState& state) {
  std::int64_t bytes = 0;
  for (const tessera::LiveTensor& tensor : state.tensors())
    for (const tessera::LivePiece& piece : tensor.pieces)
      if (tensor.spec.shape.rank() > 0) bytes += piece.chunk.numel() * 4;
  return bytes;
}

struct Trained {
  Tower tower;
  torch::optim::AdamW optimizer;
};

/// Sharded, and after one step.
Trained trained_tower(const World& world, int units, MemoryLayout layout) {
  Options sharding;
  sharding.mesh = world.mesh();
  sharding.layout = layout;
  Tower tower(units);
  for (Pile& pile : tower->piles) fully_shard(pile, sharding);
  fully_shard(tower, sharding);
  torch::optim::AdamW optimizer(tower->parameters(), 1e-3);
  tower->forward(torch::ones({1, kWidth})).sum().backward();
  optimizer.step();
  optimizer.zero_grad();
  return {std::move(tower), std::move(optimizer)};
}

struct Measured {
  std::int64_t beside = 0;  // at the most, beside what the state holds
  std::int64_t held = 0;
};

Measured measure(int units, int rank, const StateDictOptions& options, MemoryLayout layout) {
  const World world = fake_world(rank, kRanks);
  auto [tower, optimizer] = trained_tower(world, units, layout);
  release_cached_memory();
  const std::int64_t before = live;
  peak = before;
  const tessera::LiveState state = state_dict(tower, optimizer, options);
  return {peak - before - copied(state), copied(state)};
}

}  // namespace

TEST_CASE("FULL takes the memory of one unit beside its result and rank 0 alone has one") {
  const CountMemory counting;
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  StateDictOptions options;
  options.type = StateDictType::kFull;
  options.rank0_only = true;
  // Parameters and two moments of each.
  const std::int64_t tensors = 3 * kMatrices;
  for (const int units : {2, 8}) {
    const Measured first = measure(units, 0, options, layout);
    const Measured other = measure(units, 3, options, layout);
    WARN(units << " units of " << kUnit << " bytes: beside the result " << first.beside
               << " on rank 0, " << other.beside << " on others");
    CHECK(first.held == units * tensors * kBytes);
    CHECK(other.held == 0);
    // Numbers (steps) and names of allocations: 1,024 bytes a unit at most.
    CHECK(first.beside <= kUnit + units * 1024);
    CHECK(other.beside <= kUnit + units * 1024);
    CHECK(other.beside >= kBytes / 2);  // it takes part: the parts of a tensor come one by one
  }
}

TEST_CASE("even chunks take the memory of one unit beside this rank's rows") {
  const CountMemory counting;
  StateDictOptions options;
  options.even_chunks = true;
  const Measured few = measure(2, 0, options, MemoryLayout::kFlat);
  const Measured many = measure(8, 0, options, MemoryLayout::kFlat);
  CHECK(few.held == 2 * 3 * kUnit / kRanks);
  CHECK(few.beside <= kUnit + 2 * 1024);
  CHECK(many.beside <= kUnit + 8 * 1024);
}

TEST_CASE("scattering a full state that one rank has takes one tensor on each rank") {
  constexpr int kThreads = 3, kUnits = 4;
  Tower plain(kUnits);
  torch::optim::AdamW trained(plain->parameters(), 1e-3);
  plain->forward(torch::ones({1, kWidth})).sum().backward();
  trained.step();
  trained.zero_grad();
  const tessera::LiveState whole = state_dict(plain, trained);
  const CountMemory counting;
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  run_threads(kThreads, [&](World& world) {
    auto [tower, optimizer] = trained_tower(world, kUnits, layout);
    world.ranks().barrier();
    if (world.rank() == 0) release_cached_memory();
    world.ranks().barrier();
    const std::int64_t before = live;
    world.ranks().barrier();
    if (world.rank() == 0) peak = before;
    world.ranks().barrier();
    load_full_state(tower, optimizer, world.rank() == 0 ? whole : tessera::LiveState{}, true);
    world.ranks().barrier();
    // All ranks are counted together; 1,024 bytes a unit for numbers, as above.
    RANK_CHECK(peak - before <= kThreads * (kBytes + kUnits * 1024), std::to_string(peak - before));
    RANK_CHECK(peak - before >= kBytes, std::to_string(peak - before));
  });
}

TEST_CASE("a sharded state dict takes no memory of tensors") {
  const CountMemory counting;
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  const Measured found = measure(4, 2, {}, layout);
  CHECK(found.beside + found.held <= 4 * 1024);
}

}  // namespace state_memory_test
