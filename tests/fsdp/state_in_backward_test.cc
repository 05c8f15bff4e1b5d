// The state of optimizers that step in backward is that of one optimizer: saved, loaded and
// resharded as such, into units that step in backward and into one optimizer after it.
#include <tessera/base/error.h>

#include <deque>

#include "tests/fsdp/state_support.h"
#include "tests/fsdp/torch_and_catch.h"

namespace state_in_backward_test {

namespace fsdp = tessera::fsdp;
namespace optim = torch::optim;
using namespace tessera::fsdp::test;
using fsdp::MemoryLayout;

namespace {

enum class Steps { kInBackward, kAfter, kAfterInOneGroup };

struct Setup {
  int world = 1;
  MemoryLayout layout = MemoryLayout::kFlat;
  Steps steps = Steps::kInBackward;
  bool offload = false;
  bool frozen = false;  // the inner unit
  bool alike = false;   // both units' options
  bool without_mesh = false;
};

constexpr MemoryLayout kLayouts[] = {MemoryLayout::kFlat, MemoryLayout::kPerParameter};

/// The options of the inner unit, which comes first, and of the root.
optim::AdamWOptions adamw_of(std::size_t unit, bool alike) {
  if (unit == 0 || alike) return optim::AdamWOptions(2e-2).weight_decay(0.5);
  return optim::AdamWOptions(1e-2).amsgrad(true);
}

/// A rank's model and what steps it.
struct Job {
  Odd model = make_odd(false);
  std::vector<fsdp::UnitOptimizer> in_backward;
  std::unique_ptr<optim::Optimizer> after;

  void start(const Setup& setup, fsdp::World& world) {
    fsdp::Options options;
    if (setup.without_mesh)
      options.process_group = world.communicator();
    else
      options.mesh = world.mesh();
    options.layout = setup.layout;
    options.cpu_offload.offload_params = setup.offload;
    if (setup.frozen)
      for (torch::Tensor& parameter : model->inner->parameters())
        parameter.set_requires_grad(false);
    shard_odd(model, options);
    if (setup.steps == Steps::kInBackward) {
      std::size_t unit = 0;
      in_backward = fsdp::optimizer_in_backward(model, [&](std::vector<torch::Tensor> params) {
        return std::make_shared<optim::AdamW>(std::move(params), adamw_of(unit++, setup.alike));
      });
    } else if (setup.steps == Steps::kAfterInOneGroup) {
      after = std::make_unique<optim::AdamW>(once_each(model->parameters()), adamw_of(0, true));
    } else {
      std::vector<torch::Tensor> inner = model->inner->parameters(), rest;
      for (const torch::Tensor& each : once_each(model->parameters()))
        if (std::ranges::none_of(inner, [&](const auto& other) { return other.is_same(each); }))
          rest.push_back(each);
      std::vector<optim::OptimizerParamGroup> groups;
      groups.emplace_back(inner, std::make_unique<optim::AdamWOptions>(adamw_of(0, setup.alike)));
      groups.emplace_back(rest, std::make_unique<optim::AdamWOptions>(adamw_of(1, setup.alike)));
      after = std::make_unique<optim::AdamW>(groups, optim::AdamWOptions(9));
    }
  }
  fsdp::OptimizerRef optimizers() {
    return after ? fsdp::OptimizerRef(*after) : fsdp::OptimizerRef(in_backward);
  }
  tessera::LiveState state(const fsdp::StateDictOptions& options = {}) {
    return fsdp::state_dict(model, optimizers(), options);
  }
  void train(fsdp::World& world, int from, int to) {
    for (int step = from; step < to; ++step) {
      if (after) after->zero_grad();
      odd_loss(model, step, world.rank(), world.size()).backward();
      if (after) after->step();
    }
  }
  void load(fsdp::World& world, const std::string& path) {
    {
      const torch::NoGradGuard no_grad;
      for (torch::Tensor& parameter : model->parameters()) parameter.fill_(-7);
      for (torch::Tensor& buffer : model->buffers()) buffer.fill_(3);
    }
    const tessera::LoadResult result = tessera::load(path, state(), world.ranks());
    RANK_CHECK(result.missing.empty() && result.unexpected.empty() && result.mismatched.empty());
  }
};

using Body = std::function<void(fsdp::World&, Job&)>;

/// Runs `body` on every rank; then the whole state, put together by brute force.
Checkpoint run(const Setup& setup, const Body& body, const fsdp::StateDictOptions& options = {}) {
  std::deque<Job> jobs(static_cast<std::size_t>(setup.world));
  std::vector<tessera::LiveState> states(jobs.size());
  fsdp::run_threads(setup.world, [&](fsdp::World& world) {
    const auto r = static_cast<std::size_t>(world.rank());
    jobs[r].start(setup, world);
    body(world, jobs[r]);
    states[r] = jobs[r].state(options);
    states[r].before_save();
  });
  return Checkpoint::of(states);
}

Body trained(int steps, const std::string& save_to = {}) {
  return [=](fsdp::World& world, Job& job) {
    job.train(world, 0, steps);
    if (!save_to.empty()) tessera::save(save_to, job.state(), world.ranks());
  };
}

Body loaded(const std::string& from, int first = 0, int last = 0) {
  return [=](fsdp::World& world, Job& job) {
    job.load(world, from);
    job.train(world, first, last);
  };
}

double lr_of(const Checkpoint& checkpoint, int group) {
  const auto name = "optim.param_groups." + std::to_string(group) + ".lr";
  const tessera::StateEntry* entry = checkpoint.manifest.state.find(name);
  return entry ? entry->value.as_real() : -1;
}

}  // namespace

TEST_CASE("state of optimizers that step in backward is that of one with the same groups") {
  const int world = GENERATE(1, 2, 4);
  const MemoryLayout layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  const auto [offload, frozen] =
      GENERATE(table<bool, bool>({{false, false}, {true, false}, {false, true}}));
  CAPTURE(world, layout == MemoryLayout::kFlat, offload, frozen);
  const Checkpoint found = run({world, layout, Steps::kInBackward, offload, frozen}, trained(3));
  check_equal(found, run({world, layout, Steps::kAfter, offload, frozen}, trained(3)));
  CHECK(lr_of(found, 0) == 2e-2);
  CHECK(lr_of(found, 1) == 1e-2);
  CHECK(lr_of(found, 2) == -1);
  CHECK(found.tensors.at("optim.state.embed.weight.max_exp_avg_sq").sum().item<float>() > 0);
  CHECK(found.tensors.contains("optim.state.inner.a.weight.exp_avg") != frozen);
}

TEST_CASE("what steps in backward is loaded on any number of ranks however they step") {
  const int from = GENERATE(1, 2, 4);
  const MemoryLayout layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  ScratchFolder folder;
  const std::string path = folder / "step_2";
  const Checkpoint saved = run({from, layout}, trained(2, path));
  for (const int to : {1, 2, 4})
    for (const MemoryLayout other : kLayouts)
      for (const Steps steps : {Steps::kInBackward, Steps::kAfter}) {
        CAPTURE(from, to, layout == MemoryLayout::kFlat, other == MemoryLayout::kFlat,
                steps == Steps::kAfter);
        check_equal(run({to, other, steps}, loaded(path)), saved);
      }
}

TEST_CASE("one group becomes a group for each unit that steps in backward and one again") {
  ScratchFolder folder;
  Setup one{2, MemoryLayout::kFlat, Steps::kAfterInOneGroup}, several{3};
  several.alike = true;
  const Checkpoint first = run(one, trained(2, folder / "step_1"));
  const Checkpoint split = run(several, [&](fsdp::World& world, Job& job) {
    for (const fsdp::UnitOptimizer& each : job.in_backward)
      static_cast<optim::AdamWOptions&>(each.optimizer->param_groups()[0].options()).lr(9);
    job.load(world, folder / "step_1");
    tessera::save(folder / "step_2", job.state(), world.ranks());
  });
  CHECK(lr_of(first, 1) == -1);
  CHECK(lr_of(split, 0) == 2e-2);
  CHECK(lr_of(split, 1) == 2e-2);
  REQUIRE(split.tensors.size() == first.tensors.size());
  for (const auto& [name, tensor] : first.tensors) {
    CAPTURE(name);
    CHECK(same_bits(split.tensors.at(name), tensor));
  }
  check_equal(
      run({4, MemoryLayout::kPerParameter, Steps::kAfterInOneGroup}, loaded(folder / "step_2")),
      first);
}

TEST_CASE("a group of units whose options differ does not become one") {
  ScratchFolder folder;
  run({1}, trained(1, folder / "step_1"));
  CHECK_THROWS_WITH(
      run({1, MemoryLayout::kFlat, Steps::kAfterInOneGroup}, loaded(folder / "step_1")),
      Catch::Contains("in groups") && Catch::Contains("with different options"));
}

TEST_CASE("training that steps in backward goes on as if it had never stopped") {
  const int world = GENERATE(1, 2, 4);
  const MemoryLayout layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  const bool offload = GENERATE(false, true);
  ScratchFolder folder;
  const std::string path = folder / "step_3";
  const Setup setup{world, layout, Steps::kInBackward, offload};
  run(setup, trained(3, path));
  const Checkpoint expected = run(setup, trained(6));
  check_equal(run(setup, loaded(path, 3, 6)), expected);
  check_equal(run({world, layout, Steps::kAfter, offload}, loaded(path, 3, 6)), expected);
}

TEST_CASE("a unit that was frozen while others stepped in backward goes on once it is trained") {
  ScratchFolder folder;
  const std::string path = folder / "step_2";
  Setup setup{2};
  setup.frozen = true;
  const auto thawed = [&](Steps steps) {
    Setup to = setup;
    to.steps = steps;
    return run(to, [&](fsdp::World& world, Job& job) {
      job.load(world, path);
      for (torch::Tensor& parameter : job.model->inner->parameters())
        parameter.set_requires_grad(true);
      job.train(world, 2, 4);
    });
  };
  run(setup, trained(2, path));
  const Checkpoint found = thawed(Steps::kInBackward);
  check_equal(found, thawed(Steps::kAfter));
  CHECK(found.tensors.at("optim.state.inner.a.weight.step").item<float>() == 2);
  CHECK(found.tensors.at("optim.state.embed.weight.step").item<float>() == 4);
}

TEST_CASE("LOCAL and FULL states of optimizers that step in backward are those of one") {
  fsdp::StateDictOptions options;
  options.type = GENERATE(fsdp::StateDictType::kLocal, fsdp::StateDictType::kFull);
  CAPTURE(fsdp::state_dict_type_name(options.type));
  Setup setup{2};
  setup.without_mesh = true;
  const auto full_of = [&](Steps steps) {
    setup.steps = steps;
    return run(setup, trained(2), options);
  };
  const auto sharded_of = [&](Steps steps) {
    setup.steps = steps;
    return run(setup, trained(2));
  };
  if (options.type == fsdp::StateDictType::kLocal) {
    check_equal(full_of(Steps::kInBackward), full_of(Steps::kAfter));
    return;
  }
  // Every rank holds it whole: scattered into fresh optimizers it is the state that it was.
  const Checkpoint expected = sharded_of(Steps::kAfter);
  std::deque<Job> jobs(2), others(2);
  std::vector<tessera::LiveState> states(2);
  setup.steps = Steps::kInBackward;
  fsdp::run_threads(2, [&](fsdp::World& world) {
    const auto r = static_cast<std::size_t>(world.rank());
    jobs[r].start(setup, world);
    jobs[r].train(world, 0, 2);
    tessera::LiveState full = jobs[r].state(options);
    full.before_save();
    others[r].start(setup, world);
    fsdp::load_full_state(others[r].model, others[r].in_backward, full);
    states[r] = others[r].state();
    states[r].before_save();
  });
  check_equal(Checkpoint::of(states), expected);
}

TEST_CASE("units may step in backward with optimizers of different classes") {
  ScratchFolder folder;
  const auto make = [](Job& job, fsdp::World& world, MemoryLayout layout) {
    fsdp::Options options;
    options.mesh = world.mesh();
    options.layout = layout;
    shard_odd(job.model, options);
    bool first = true;
    job.in_backward = fsdp::optimizer_in_backward(
        job.model, [&](std::vector<torch::Tensor> params) -> std::shared_ptr<optim::Optimizer> {
          if (!std::exchange(first, false))
            return std::make_shared<optim::Adagrad>(params, optim::AdagradOptions(1e-2));
          return std::make_shared<optim::SGD>(params, optim::SGDOptions(0.05).momentum(0.9));
        });
  };
  std::deque<Job> jobs(2), others(3);
  std::vector<tessera::LiveState> before(2), after(3);
  fsdp::run_threads(2, [&](fsdp::World& world) {
    const auto r = static_cast<std::size_t>(world.rank());
    make(jobs[r], world, MemoryLayout::kFlat);
    jobs[r].train(world, 0, 2);
    before[r] = jobs[r].state();
    tessera::save(folder / "step_2", before[r], world.ranks());
  });
  fsdp::run_threads(3, [&](fsdp::World& world) {
    const auto r = static_cast<std::size_t>(world.rank());
    make(others[r], world, MemoryLayout::kPerParameter);
    others[r].load(world, folder / "step_2");
    after[r] = others[r].state();
    after[r].before_save();
  });
  const Checkpoint expected = Checkpoint::of(before);
  CHECK(expected.tensors.contains("optim.state.inner.a.weight.momentum_buffer"));
  CHECK(expected.tensors.contains("optim.state.embed.weight.sum"));
  check_equal(Checkpoint::of(after), expected);
}

TEST_CASE("a backward that steps is seen by a state whose snapshot is not finished") {
  fsdp::run_threads(2, [](fsdp::World& world) {
    Net net = make_net();
    fsdp::Options options;
    options.mesh = world.mesh();
    shard(net, options);
    const auto optimizers = fsdp::optimizer_in_backward(net, [](std::vector<torch::Tensor> p) {
      return std::make_shared<optim::AdamW>(p, optim::AdamWOptions(1e-2));
    });
    const Data data = make_data();
    torch::mse_loss(net->forward(data.x), data.y).backward();
    const tessera::LiveState state = fsdp::state_dict(net, optimizers);
    const torch::Tensor loss = torch::mse_loss(net->forward(data.x), data.y);
    RANK_CHECK(state.changed().empty(), state.changed());
    loss.backward();
    RANK_CHECK(state.changed().starts_with("model."), state.changed());
  });
}

TEST_CASE("a list of optimizers that leaves a unit's out or names one twice is refused") {
  fsdp::run_threads(2, [](fsdp::World& world) {
    Job job;
    job.start({2}, world);
    const auto refused = [&](const std::vector<fsdp::UnitOptimizer>& list) {
      return message_of([&] { fsdp::state_dict(job.model, list); });
    };
    const auto has = [](const std::string& text, const char* part) {
      return text.find(part) != std::string::npos;
    };
    std::string message = refused({});
    RANK_CHECK(has(message, "the list of optimizers is empty"), message);
    message = refused({{"inner", nullptr, {}}});
    RANK_CHECK(has(message, "of unit \"inner\" is null"), message);
    message = refused({job.in_backward[1]});
    RANK_CHECK(has(message, "unit \"inner\" steps in backward, and its optimizer is not given") &&
                   has(message, "optimizers_in_backward"),
               message);
    optim::SGD plain(once_each(job.model->parameters()), optim::SGDOptions(1));
    message = message_of([&] { fsdp::state_dict(job.model, plain); });
    RANK_CHECK(has(message, "steps in backward, and its optimizer is not given"), message);
    message = refused({job.in_backward[0], job.in_backward[1], job.in_backward[0]});
    RANK_CHECK(has(message, "groups 0 and 2") && has(message, "\"inner.a.weight\""), message);
    job.train(world, 0, 1);  // who is the root is known from the first forward on
    message = message_of([&] { fsdp::state_dict(job.model->inner, job.in_backward); });
    RANK_CHECK(has(message, "unit \"inner\" is not the root"), message);
    RANK_CHECK(message_of([&] { fsdp::state_dict(job.model); }).empty());
  });
}

}  // namespace state_in_backward_test
