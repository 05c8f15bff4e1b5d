// Parameters that are frozen and trained by turns, over saves and loads: what they have learned of
// their gradients stays while they are frozen, and training goes on from there.
#include <tessera/storage/memory_file_system.h>

#include "tests/fsdp/state_support.h"
#include "tests/fsdp/torch_and_catch.h"

namespace state_frozen_test {

namespace fsdp = tessera::fsdp;
namespace optim = torch::optim;
using namespace tessera::fsdp::test;
using fsdp::MemoryLayout;

namespace {

/// One stretch of training between a load and a save.
struct Stretch {
  bool frozen = false;  // the inner unit's first layer
  int first = 0, end = 0;
};

struct Job {
  Odd model = make_odd(false);
  std::unique_ptr<optim::AdamW> optimizer;
  void start(fsdp::World& world, MemoryLayout layout, bool frozen) {
    freeze(frozen);
    fsdp::Options options;
    options.mesh = world.mesh();
    options.layout = layout;
    shard_odd(model, options);
    optimizer = std::make_unique<optim::AdamW>(once_each(model->parameters()),
                                               optim::AdamWOptions(1e-2).weight_decay(0.25));
  }
  void freeze(bool frozen) {
    for (torch::Tensor& parameter : model->inner->a->parameters())
      parameter.set_requires_grad(!frozen);
  }
  void train(fsdp::World& world, const Stretch& stretch) {
    train_odd(model, *optimizer, stretch.first, stretch.end, world.rank(), world.size());
  }
};

/// Each stretch by a job of its own, which begins with what the one before it saved. The state at
/// the end.
Checkpoint in_stretches(const std::vector<Stretch>& stretches, const std::vector<int>& worlds,
                        std::vector<Checkpoint>* between = nullptr) {
  tessera::MemoryFileSystem fs;
  tessera::SaveOptions saving;
  tessera::LoadPolicy loading;
  saving.file_system = loading.file_system = &fs;
  Checkpoint out;
  for (std::size_t s = 0; s < stretches.size(); ++s) {
    std::vector<Job> jobs(static_cast<std::size_t>(worlds[s]));
    std::vector<tessera::LiveState> states(jobs.size());
    fsdp::run_threads(worlds[s], [&](fsdp::World& world) {
      const auto r = static_cast<std::size_t>(world.rank());
      Job& job = jobs[r];
      job.start(world, s % 2 == 0 ? MemoryLayout::kFlat : MemoryLayout::kPerParameter,
                stretches[s].frozen);
      const auto state = [&] { return fsdp::state_dict(job.model, *job.optimizer); };
      const auto path = [](std::size_t n) { return "/run/step_" + std::to_string(n); };
      if (s > 0) {
        const tessera::LoadResult result = tessera::load(path(s), state(), world.ranks(), loading);
        RANK_CHECK(result.missing.empty() && result.unexpected.empty());
      }
      job.train(world, stretches[s]);
      tessera::save(path(s + 1), state(), world.ranks(), saving);
      states[r] = state();
      states[r].before_save();
    });
    out = Checkpoint::of(states);
    if (between != nullptr) between->push_back(out);
  }
  return out;
}

/// The same by one job that never stops.
Checkpoint at_once(const std::vector<Stretch>& stretches, int ranks) {
  std::vector<Job> jobs(static_cast<std::size_t>(ranks));
  std::vector<tessera::LiveState> states(jobs.size());
  fsdp::run_threads(ranks, [&](fsdp::World& world) {
    const auto r = static_cast<std::size_t>(world.rank());
    Job& job = jobs[r];
    job.start(world, MemoryLayout::kFlat, stretches[0].frozen);
    for (const Stretch& stretch : stretches) {
      job.optimizer->zero_grad();
      job.freeze(stretch.frozen);
      job.train(world, stretch);
    }
    states[r] = fsdp::state_dict(job.model, *job.optimizer);
    states[r].before_save();
  });
  return Checkpoint::of(states);
}

const std::string kWeight = "inner.a.weight", kMoment = "optim.state.inner.a.weight.exp_avg",
                  kStep = "optim.state.inner.a.weight.step",
                  kOtherStep = "optim.state.embed.weight.step";

float step_of(const Checkpoint& checkpoint, const std::string& name) {
  return checkpoint.tensors.at(name).item<float>();
}

}  // namespace

TEST_CASE("a parameter that is trained, frozen and trained again keeps its moments in between") {
  const std::vector<Stretch> stretches = {{false, 0, 2}, {true, 2, 4}, {false, 4, 6}};
  SECTION("on other numbers of ranks") {
    std::vector<Checkpoint> after;
    in_stretches(stretches, {3, 2, 4}, &after);
    for (const std::string& name :
         {"model." + kWeight, kMoment, kStep, std::string("optim.state.inner.a.bias.exp_avg_sq")}) {
      CAPTURE(name);
      CHECK(same_bits(after[1].tensors.at(name), after[0].tensors.at(name)));
      CHECK_FALSE(same_bits(after[2].tensors.at(name), after[1].tensors.at(name)));
    }
    CHECK(step_of(after[1], kStep) == 2);
    CHECK(step_of(after[1], kOtherStep) == 4);
    CHECK(step_of(after[2], kStep) == 4);
    CHECK(step_of(after[2], kOtherStep) == 6);
  }
  SECTION("as if it had never stopped") {
    check_equal(in_stretches(stretches, {2, 2, 2}), at_once(stretches, 2));
  }
}

TEST_CASE("a parameter that is frozen first has no state until it is trained") {
  const std::vector<Stretch> stretches = {{true, 0, 2}, {false, 2, 4}};
  std::vector<Checkpoint> after;
  in_stretches(stretches, {3, 4}, &after);
  CHECK_FALSE(after[0].tensors.contains(kMoment));
  CHECK_FALSE(after[0].tensors.contains(kStep));
  CHECK(step_of(after[1], kStep) == 2);
  CHECK(step_of(after[1], kOtherStep) == 4);
  check_equal(in_stretches(stretches, {2, 2}), at_once(stretches, 2));
}

}  // namespace state_frozen_test
