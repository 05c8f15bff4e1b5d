#include <tessera/base/error.h>
#include <tessera/ops/convert.h>
#include <tessera/ops/hash.h>
#include <tessera/ops/open.h>

#include "tests/fsdp/state_support.h"
#include "tests/fsdp/torch_and_catch.h"

namespace state_resume_test {

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

Body trained(int steps, const std::string& save_to = {}) {
  return [=](fsdp::World& world, Odd& model, optim::AdamW& optimizer) {
    train_odd(model, optimizer, 0, steps, world.rank(), world.size());
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
    train_odd(model, optimizer, steps_from, steps_to, world.rank(), world.size());
  };
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

TEST_CASE(
    "losses after a resume on another number of ranks are those of a run that never stopped") {
  // Sums over ranks are added in another order: not equal bit by bit.
  constexpr double kTolerance = 1e-5;
  constexpr int kFrom = 4, kStop = 3, kEnd = 8;
  const MemoryLayout layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  ScratchFolder folder;
  const std::string path = folder / "step_3";
  const auto losses_of = [&](int world, const std::string& from, int first) {
    std::vector<double> losses;
    run({world, layout}, [&](fsdp::World& w, Odd& model, optim::AdamW& optimizer) {
      if (!from.empty()) loaded(from)(w, model, optimizer);
      for (int step = first; step < kEnd; ++step) {
        optimizer.zero_grad();
        const torch::Tensor loss = odd_loss(model, step, w.rank(), w.size());
        loss.backward();
        optimizer.step();
        const double mean = mean_loss(loss, w.communicator().get());
        if (w.rank() == 0) losses.push_back(mean);
        if (from.empty() && step + 1 == kStop)
          tessera::save(path, fsdp::state_dict(model, optimizer), w.ranks());
      }
    });
    return losses;
  };
  const std::vector<double> expected = losses_of(kFrom, "", 0);
  REQUIRE(expected.size() == kEnd);
  CHECK(expected.back() < expected.front() - 0.1);  // it learns something
  tessera::ConvertOptions options;
  options.source = path;
  options.destination = folder / "resharded";
  options.target.world_size = 6;
  tessera::convert(*tessera::make_posix_file_system(), options);
  for (const int world : {1, 2, 3, 4, 8})
    for (const std::string& from : {path, options.destination}) {
      if (from == options.destination && world != 3) continue;
      const std::vector<double> found = losses_of(world, from, kStop);
      REQUIRE(found.size() == kEnd - kStop);
      for (std::size_t step = 0; step < found.size(); ++step) {
        CAPTURE(world, step);
        CHECK(found[step] == Approx(expected[kStop + step]).margin(kTolerance).epsilon(0));
      }
    }
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

TEST_CASE("bfloat16 weights, frozen parameters and their moments go over to other ranks") {
  ScratchFolder folder;
  const std::string path = folder / "step_2";
  const auto setup = [](Odd& model, fsdp::World& world, MemoryLayout layout) {
    model->to(torch::kBFloat16);
    model->inner->a->weight.set_requires_grad(false);
    fsdp::Options options;
    options.mesh = world.mesh();
    options.layout = layout;
    shard_odd(model, options);
  };
  std::vector<tessera::LiveState> before(3), after(2);
  std::vector<Odd> models;
  std::vector<std::unique_ptr<optim::AdamW>> optimizers(5);
  for (int r = 0; r < 5; ++r) models.push_back(make_odd(false));
  fsdp::run_threads(3, [&](fsdp::World& world) {
    const auto r = static_cast<std::size_t>(world.rank());
    setup(models[r], world, MemoryLayout::kFlat);
    optimizers[r] = std::make_unique<optim::AdamW>(models[r]->parameters());
    train_odd(models[r], *optimizers[r], 0, 2, world.rank(), world.size());
    before[r] = fsdp::state_dict(models[r], *optimizers[r]);
    tessera::save(path, before[r], world.ranks());
  });
  fsdp::run_threads(2, [&](fsdp::World& world) {
    const auto r = 3 + static_cast<std::size_t>(world.rank());
    setup(models[r], world, MemoryLayout::kPerParameter);
    optimizers[r] = std::make_unique<optim::AdamW>(models[r]->parameters());
    tessera::load(path, fsdp::state_dict(models[r], *optimizers[r]), world.ranks());
    after[r - 3] = fsdp::state_dict(models[r], *optimizers[r]);
    after[r - 3].before_save();
  });
  const Checkpoint expected = Checkpoint::of(before);
  CHECK(expected.tensors.at("model.embed.weight").scalar_type() == torch::kBFloat16);
  CHECK_FALSE(expected.tensors.contains("optim.state.inner.a.weight.exp_avg"));
  check_equal(Checkpoint::of(after), expected);
}

TEST_CASE("a policy that skips the optimizer leaves it alone, whatever the checkpoint's is") {
  ScratchFolder folder;
  const std::string path = folder / "step_2";
  const Checkpoint saved = run({1}, trained(2, path));
  const auto ranks = tessera::single_rank();
  Odd model = make_odd(false);
  optim::Adam adam(model->parameters(), optim::AdamOptions(0.5));
  odd_loss(model, 0, 0, 1).backward();
  adam.step();
  const Checkpoint before = Checkpoint::of({fsdp::state_dict(model, adam)});
  CHECK_THROWS_WITH(tessera::load(path, fsdp::state_dict(model, adam), *ranks),
                    Catch::Contains("in groups 1 and 0 with different options"));
  tessera::LoadPolicy policy;
  policy.optimizer = tessera::PartPolicy::kSkip;
  tessera::load(path, fsdp::state_dict(model, adam), *ranks, policy);
  const Checkpoint after = Checkpoint::of({fsdp::state_dict(model, adam)});
  for (const auto& [name, tensor] : after.tensors) {
    CAPTURE(name);
    CHECK(same_bits(tensor, (name.starts_with("optim.") ? before : saved).tensors.at(name)));
  }
  CHECK(static_cast<optim::AdamOptions&>(adam.param_groups()[0].options()).lr() == 0.5);
  // And a model alone takes no notice of an optimizer.
  CHECK_NOTHROW(tessera::load(path, fsdp::state_dict(model), *ranks));
}

TEST_CASE("the random generator and other values go with the state and come back") {
  ScratchFolder folder;
  const auto ranks = tessera::single_rank();
  Odd model = make_odd(true);
  const auto state = [&](std::int64_t step) {
    tessera::LiveState out = fsdp::state_dict(model);
    out.add_value("step", tessera::Value::integer(step));
    out.add_value("rng", fsdp::rng_state(), tessera::ValueScope::kPerRank);
    return out;
  };
  std::lock_guard lock(generator_mutex());
  torch::manual_seed(5);
  tessera::save(folder / "a", state(12), *ranks);
  const torch::Tensor expected = torch::rand({4});
  const tessera::LoadResult result = tessera::load(folder / "a", state(0), *ranks);
  std::int64_t step = 0;
  for (const tessera::StateEntry& entry : result.values) {
    if (entry.name == "step") step = entry.value.as_int();
    if (entry.name.starts_with("rng")) fsdp::set_rng_state(entry.value);
  }
  CHECK(step == 12);
  CHECK(same_bits(torch::rand({4}), expected));
  CHECK_THROWS_WITH(fsdp::set_rng_state(tessera::Value::bytes("abc")),
                    Catch::Contains("no state of LibTorch's CPU generator"));
}

TEST_CASE("ranks whose groups differ save nothing and name the key with both values") {
  ScratchFolder folder;
  const std::string path = folder / "step_1";
  std::string message;
  try {
    run({2}, [&](fsdp::World& world, Odd& model, optim::AdamW& optimizer) {
      train_odd(model, optimizer, 0, 1, world.rank(), world.size());
      if (world.rank() == 1)
        static_cast<optim::AdamWOptions&>(optimizer.param_groups()[1].options()).lr(0.75);
      tessera::save(path, fsdp::state_dict(model, optimizer), world.ranks());
    });
  } catch (const tessera::Error& error) {
    message = error.what();
  }
  CHECK_THAT(message, Catch::Contains("optim.param_groups.1.lr") && Catch::Contains("0.75") &&
                          Catch::Contains("0.01"));
  CHECK_FALSE(std::filesystem::exists(path));
}

TEST_CASE("a module without fully_shard is saved and loaded by one process with the same calls") {
  ScratchFolder folder;
  const std::string path = folder / "step_2";
  const auto ranks = tessera::single_rank();
  Odd model = make_odd(true), other = make_odd(true);
  optim::Adam optimizer(model->parameters(), optim::AdamOptions(1e-2));
  optim::Adam fresh(other->parameters(), optim::AdamOptions(7));
  train_odd(model, optimizer, 0, 2, 0, 1);
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

}  // namespace state_resume_test
