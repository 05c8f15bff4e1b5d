// Every optimizer, from every number of ranks to every other: what is saved comes back bit by bit,
// and training goes on as if it had never stopped: on as many ranks bit by bit, on others with the
// same losses. The model has tied, frozen and empty parameters and sizes that no number of ranks
// divides; parameters are in two groups.
#include <tessera/ops/convert.h>
#include <tessera/storage/memory_file_system.h>

#include <mutex>

#include "tests/fsdp/state_support.h"
#include "tests/fsdp/torch_and_catch.h"

namespace state_table_test {

namespace fsdp = tessera::fsdp;
namespace optim = torch::optim;
using namespace tessera::fsdp::test;
using fsdp::MemoryLayout;

namespace {

constexpr int kWorlds[] = {1, 2, 3, 4, 8};  // 8 is more than most extents
constexpr int kStop = 2, kEnd = 4;          // steps
constexpr const char* kPath = "/run/step_2";
constexpr const char* kResharded = "/run/resharded";

using Parameters = std::vector<torch::Tensor>;
using MakeOptimizer =
    std::function<std::unique_ptr<optim::Optimizer>(const Parameters&, const Parameters&)>;

/// Each of two groups with options of its own.
template <class O, class Options>
MakeOptimizer maker(Options first, Options second) {
  return [=](const Parameters& weights, const Parameters& others) {
    std::vector<optim::OptimizerParamGroup> groups;
    groups.emplace_back(weights, std::make_unique<Options>(first));
    groups.emplace_back(others, std::make_unique<Options>(second));
    return std::make_unique<O>(groups, Options(first));
  };
}

struct Case {
  std::string name;
  MakeOptimizer make;
  torch::Dtype dtype = torch::kFloat;
  /// How far losses on other numbers of ranks may be apart: sums over ranks are added in another
  /// order. In bfloat16 the neighbours of a loss of 5 are 1/32 away: two of them.
  double tolerance() const { return dtype == torch::kFloat ? 1e-5 : 1.0 / 16; }
};

std::vector<Case> cases() {
  using optim::AdagradOptions, optim::AdamOptions, optim::AdamWOptions, optim::RMSpropOptions,
      optim::SGDOptions;
  const MakeOptimizer adamw =
      maker<optim::AdamW>(AdamWOptions(2e-2).weight_decay(0.5), AdamWOptions(1e-2).amsgrad(true));
  return {{"Adam", maker<optim::Adam>(AdamOptions(2e-2), AdamOptions(1e-2).amsgrad(true))},
          {"AdamW", adamw},
          {"AdamW bfloat16", adamw, torch::kBFloat16},
          {"SGD", maker<optim::SGD>(SGDOptions(2e-2).momentum(0.9), SGDOptions(1e-2))},
          {"Adagrad", maker<optim::Adagrad>(AdagradOptions(2e-2), AdagradOptions(1e-2))},
          {"RMSprop", maker<optim::RMSprop>(RMSpropOptions(2e-2),
                                            RMSpropOptions(1e-2).momentum(0.9).centered(true))}};
}

struct Setup {
  const Case& which;
  int world = 1;
  MemoryLayout layout = MemoryLayout::kFlat;
};

struct Trained {
  Checkpoint stopped;          // after kStop steps, or after the load
  Checkpoint later;            // after kEnd
  std::vector<double> losses;  // of the steps between
};

Odd make_model(const Case& which) {
  Odd model = make_odd(false);
  model->to(which.dtype);
  model->inner->a->weight.set_requires_grad(false);
  return model;
}

std::unique_ptr<optim::Optimizer> make_optimizer(const Case& which, Odd& model) {
  Parameters weights, others;
  for (const auto& item : model->named_parameters())
    (item.key().find("weight") != std::string::npos ? weights : others).push_back(item.value());
  return which.make(weights, others);
}

/// The mean losses of the steps.
std::vector<double> train(fsdp::World& world, Odd& model, optim::Optimizer& optimizer, int from,
                          int to) {
  std::vector<double> losses;
  for (int step = from; step < to; ++step) {
    optimizer.zero_grad();
    const torch::Tensor loss = odd_loss(model, step, world.rank(), world.size());
    loss.backward();
    optimizer.step();
    losses.push_back(mean_loss(loss, world.communicator().get()));
  }
  return losses;
}

using Begin = std::function<void(fsdp::World&, Odd&, optim::Optimizer&)>;

/// `begin` on every rank of a sharded model, then the whole state, put together by brute force;
/// then steps up to kEnd, and the whole state again.
Trained run(const Setup& setup, const Begin& begin) {
  const auto world = static_cast<std::size_t>(setup.world);
  std::vector<Odd> models;
  std::vector<std::unique_ptr<optim::Optimizer>> optimizers(world);
  std::vector<tessera::LiveState> stopped(world), later(world);
  for (std::size_t r = 0; r < world; ++r) models.push_back(make_model(setup.which));
  Trained out;
  fsdp::run_threads(setup.world, [&](fsdp::World& w) {
    const auto r = static_cast<std::size_t>(w.rank());
    fsdp::Options options;
    options.layout = setup.layout;
    options.mesh = w.mesh();
    shard_odd(models[r], options);
    optimizers[r] = make_optimizer(setup.which, models[r]);
    begin(w, models[r], *optimizers[r]);
    stopped[r] = fsdp::state_dict(models[r], *optimizers[r]);
    stopped[r].before_save();
    w.ranks().barrier();
    if (r == 0) out.stopped = Checkpoint::of(stopped);
    w.ranks().barrier();
    const std::vector<double> losses = train(w, models[r], *optimizers[r], kStop, kEnd);
    if (r == 0) out.losses = losses;
    later[r] = fsdp::state_dict(models[r], *optimizers[r]);
    later[r].before_save();
  });
  out.later = Checkpoint::of(later);
  return out;
}

Begin trained_and_saved(tessera::FileSystem& fs) {
  return [&](fsdp::World& world, Odd& model, optim::Optimizer& optimizer) {
    train(world, model, optimizer, 0, kStop);
    tessera::SaveOptions options;
    options.file_system = &fs;
    tessera::save(kPath, fsdp::state_dict(model, optimizer), world.ranks(), options);
  };
}

/// Values first made wrong, so that what is not loaded shows.
Begin loaded(tessera::FileSystem& fs, const char* path) {
  return [&fs, path](fsdp::World& world, Odd& model, optim::Optimizer& optimizer) {
    {
      torch::NoGradGuard no_grad;
      for (auto& parameter : model->parameters()) parameter.fill_(-7);
      for (auto& buffer : model->buffers()) buffer.fill_(3);
    }
    tessera::LoadPolicy policy;
    policy.file_system = &fs;
    const tessera::LoadResult result =
        tessera::load(path, fsdp::state_dict(model, optimizer), world.ranks(), policy);
    RANK_CHECK(result.missing.empty() && result.unexpected.empty() && result.mismatched.empty());
  };
}

/// Both layouts on either side, over all pairs; the same where the numbers of ranks are.
MemoryLayout layout_at(std::size_t which, std::size_t world) {
  return (which + world) % 2 == 0 ? MemoryLayout::kFlat : MemoryLayout::kPerParameter;
}

/// `again` began with what `saved` had when it stopped.
void check_goes_on(const Trained& again, const Trained& saved, const Case& which, bool same_ranks) {
  check_equal(again.stopped, saved.stopped);
  if (same_ranks) check_equal(again.later, saved.later);
  REQUIRE(again.losses.size() == saved.losses.size());
  for (std::size_t step = 0; step < saved.losses.size(); ++step) {
    CAPTURE(step);
    CHECK(again.losses[step] == Approx(saved.losses[step]).margin(which.tolerance()).epsilon(0));
  }
}

}  // namespace

TEST_CASE("every optimizer goes from every number of ranks to every other bit by bit") {
  const auto number = GENERATE(range(std::size_t{0}, cases().size()));
  const std::vector<Case> all = cases();
  const Case& which = all[number];
  for (std::size_t f = 0; f < std::size(kWorlds); ++f) {
    tessera::MemoryFileSystem fs;
    const Trained saved = run({which, kWorlds[f], layout_at(number, f)}, trained_and_saved(fs));
    for (const char* trained : {"model.embed.weight", "optim.state.embed.weight."}) {
      const auto at = saved.stopped.tensors.lower_bound(trained);
      REQUIRE(at != saved.stopped.tensors.end());
      REQUIRE(at->first.starts_with(trained));
      CHECK_FALSE(same_bits(at->second, saved.later.tensors.at(at->first)));
    }
    for (std::size_t t = 0; t < std::size(kWorlds); ++t) {
      CAPTURE(which.name, kWorlds[f], kWorlds[t]);
      check_goes_on(run({which, kWorlds[t], layout_at(number, t)}, loaded(fs, kPath)), saved, which,
                    f == t);
    }
  }
}

TEST_CASE("every optimizer comes through a reshard to every number of ranks bit by bit") {
  const auto number = GENERATE(range(std::size_t{0}, cases().size()));
  const std::vector<Case> all = cases();
  const Case& which = all[number];
  for (const int from : kWorlds) {
    tessera::MemoryFileSystem fs;
    const Trained saved = run({which, from}, trained_and_saved(fs));
    for (const int to : kWorlds) {
      CAPTURE(which.name, from, to);
      tessera::ConvertOptions options;
      options.source = kPath;
      options.destination = kResharded;
      options.target.world_size = to;
      options.force = true;
      tessera::convert(fs, options);
      check_goes_on(run({which, to}, loaded(fs, kResharded)), saved, which, from == to);
    }
  }
}

}  // namespace state_table_test
