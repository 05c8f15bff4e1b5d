#include <tessera/base/error.h>
#include <tessera/ops/convert.h>
#include <tessera/ops/hash.h>
#include <tessera/ops/open.h>

#include "tests/fsdp/state_support.h"
#include "tests/fsdp/torch_and_catch.h"

namespace fsdp = tessera::fsdp;
namespace optim = torch::optim;
using namespace tessera::fsdp::test;
using fsdp::MemoryLayout;
using fsdp::ShardingStrategy;

namespace {

struct Setup {
  int world = 1;
  MemoryLayout layout = MemoryLayout::kFlat;
  ShardingStrategy strategy = ShardingStrategy::kFullShard;
  bool two_dim = false;
};

fsdp::Options options_of(const Setup& setup, fsdp::World& world) {
  fsdp::Options options;
  options.layout = setup.layout;
  options.strategy = setup.strategy;
  options.mesh = setup.two_dim
                     ? fsdp::DeviceMesh(world, {2, setup.world / 2}, {"replicate", "shard"})
                     : world.mesh();
  return options;
}

using Body = std::function<void(fsdp::World&, Odd&, optim::AdamW&)>;

/// Two groups, so that groups are more than one list.
std::unique_ptr<optim::AdamW> make_optimizer(Odd& model) {
  std::vector<torch::Tensor> first, second;
  for (const auto& item : model->named_parameters())
    (item.key().find("weight") != std::string::npos ? first : second).push_back(item.value());
  std::vector<optim::OptimizerParamGroup> groups;
  groups.emplace_back(
      first, std::make_unique<optim::AdamWOptions>(optim::AdamWOptions(2e-2).weight_decay(0.5)));
  groups.emplace_back(
      second, std::make_unique<optim::AdamWOptions>(optim::AdamWOptions(1e-2).amsgrad(true)));
  return std::make_unique<optim::AdamW>(groups, optim::AdamWOptions(3e-2));
}

/// Runs `body` on every rank of a sharded model; then the whole state, put together by brute force.
Checkpoint run(const Setup& setup, const Body& body) {
  const auto world = static_cast<std::size_t>(setup.world);
  std::vector<Odd> models;
  std::vector<std::unique_ptr<optim::AdamW>> optimizers(world);
  std::vector<tessera::LiveState> states(world);
  for (std::size_t r = 0; r < world; ++r) models.push_back(make_odd(false));
  fsdp::run_threads(setup.world, [&](fsdp::World& w) {
    const auto r = static_cast<std::size_t>(w.rank());
    shard_odd(models[r], options_of(setup, w));
    optimizers[r] = make_optimizer(models[r]);
    body(w, models[r], *optimizers[r]);
    states[r] = fsdp::state_dict(models[r], *optimizers[r]);
    states[r].before_save();
  });
  return Checkpoint::of(states);
}

void train(fsdp::World& world, Odd& model, optim::Optimizer& optimizer, int from, int to) {
  for (int step = from; step < to; ++step) {
    optimizer.zero_grad();
    odd_loss(model, step, world.rank(), world.size()).backward();
    optimizer.step();
  }
}

Body trained(int steps, const std::string& save_to = {}) {
  return [=](fsdp::World& world, Odd& model, optim::AdamW& optimizer) {
    train(world, model, optimizer, 0, steps);
    if (!save_to.empty()) tessera::save(save_to, fsdp::state_dict(model, optimizer), world.ranks());
  };
}

/// Values first made wrong, so that what is not loaded shows.
Body loaded(const std::string& from, int steps_from = 0, int steps_to = 0) {
  return [=](fsdp::World& world, Odd& model, optim::AdamW& optimizer) {
    {
      torch::NoGradGuard no_grad;
      for (auto& parameter : model->parameters()) parameter.fill_(-7);
      for (auto& buffer : model->buffers()) buffer.fill_(3);
    }
    const tessera::LoadResult result =
        tessera::load(from, fsdp::state_dict(model, optimizer), world.ranks());
    RANK_CHECK(result.missing.empty() && result.unexpected.empty() && result.mismatched.empty());
    train(world, model, optimizer, steps_from, steps_to);
  };
}

void check_equal(const Checkpoint& found, const Checkpoint& expected) {
  CHECK(found.tensors.size() == expected.tensors.size());
  for (const auto& [name, tensor] : expected.tensors) {
    CAPTURE(name);
    REQUIRE(found.tensors.contains(name));
    CHECK(same_bits(found.tensors.at(name), tensor));
  }
  for (const auto& entry : expected.manifest.state.entries) {
    CAPTURE(entry.name);
    if (!entry.value.is_tensor())
      CHECK(found.manifest.state.find(entry.name)->value == entry.value);
  }
}

constexpr MemoryLayout kLayouts[] = {MemoryLayout::kFlat, MemoryLayout::kPerParameter};

}  // namespace

TEST_CASE("what is saved by any number of ranks is loaded by any other, flat or per parameter") {
  const int from = GENERATE(1, 2, 3, 4, 8);
  for (const MemoryLayout layout : kLayouts) {
    ScratchFolder folder;
    const std::string path = folder / "step_2";
    const Checkpoint saved = run({from, layout}, trained(2, path));
    for (const int to : {1, 2, 3, 4, 8})
      for (const MemoryLayout other : kLayouts) {
        CAPTURE(from, to, layout == MemoryLayout::kFlat, other == MemoryLayout::kFlat);
        check_equal(run({to, other}, loaded(path)), saved);
      }
  }
}

TEST_CASE("a checkpoint of any strategy is loaded by any other") {
  const std::vector<Setup> setups = {
      {4, MemoryLayout::kFlat, ShardingStrategy::kFullShard},
      {4, MemoryLayout::kFlat, ShardingStrategy::kShardGradOp},
      {4, MemoryLayout::kPerParameter, ShardingStrategy::kNoShard},
      {4, MemoryLayout::kFlat, ShardingStrategy::kHybridShard, true},
      {4, MemoryLayout::kPerParameter, ShardingStrategy::kHybridShardZero2, true}};
  for (std::size_t s = 0; s < setups.size(); ++s) {
    ScratchFolder folder;
    const std::string path = folder / "step_2";
    const Checkpoint saved = run(setups[s], trained(2, path));
    for (std::size_t t = 0; t < setups.size(); ++t) {
      CAPTURE(s, t);
      check_equal(run(setups[t], loaded(path)), saved);
    }
  }
}

TEST_CASE("training goes on as if it had never stopped") {
  const int world = GENERATE(1, 2, 4);
  const MemoryLayout layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  ScratchFolder folder;
  const std::string path = folder / "step_3";
  run({world, layout}, trained(3, path));
  check_equal(run({world, layout}, loaded(path, 3, 6)), run({world, layout}, trained(6)));
}

TEST_CASE("a checkpoint resharded on the way is the same state") {
  ScratchFolder folder;
  const std::string path = folder / "step_2", other = folder / "resharded";
  const Checkpoint saved = run({4, MemoryLayout::kFlat}, trained(2, path));
  tessera::ConvertOptions options;
  options.source = path;
  options.destination = other;
  options.target.world_size = 6;
  tessera::convert(*tessera::make_posix_file_system(), options);
  check_equal(run({3, MemoryLayout::kPerParameter}, loaded(other)), saved);
}

TEST_CASE("a module without fully_shard is saved and loaded by one process with the same calls") {
  ScratchFolder folder;
  const std::string path = folder / "step_2";
  const auto ranks = tessera::single_rank();
  Odd model = make_odd(true), other = make_odd(true);
  optim::Adam optimizer(model->parameters(), optim::AdamOptions(1e-2));
  optim::Adam fresh(other->parameters(), optim::AdamOptions(7));
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    odd_loss(model, step, 0, 1).backward();
    optimizer.step();
  }
  tessera::save(path, fsdp::state_dict(model, optimizer), *ranks);
  {
    torch::NoGradGuard no_grad;
    for (auto& parameter : other->parameters()) parameter.fill_(-1);
  }
  const tessera::LoadResult result = tessera::load(path, fsdp::state_dict(other, fresh), *ranks);
  CHECK(result.missing.empty());
  const auto go_on = [](Odd& net, optim::Adam& adam) {
    for (int step = 2; step < 4; ++step) {
      adam.zero_grad();
      odd_loss(net, step, 0, 1).backward();
      adam.step();
    }
  };
  go_on(model, optimizer);
  go_on(other, fresh);
  for (const auto& item : model->named_parameters())
    CHECK(same_bits(other->named_parameters()[item.key()], item.value()));
}
