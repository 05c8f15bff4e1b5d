// Every optimizer, from every number of ranks to every other: what is saved comes back bit by bit,
// and on as many ranks training goes on as if it had never stopped. The model has tied, frozen and
// empty parameters and sizes that no number of ranks divides; parameters are in two groups.
#include <tessera/ops/convert.h>

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
  Checkpoint stopped;  // after kStop steps, or after the load
  Checkpoint later;    // after kEnd
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

void train(fsdp::World& world, Odd& model, optim::Optimizer& optimizer, int from, int to) {
  for (int step = from; step < to; ++step) {
    optimizer.zero_grad();
    odd_loss(model, step, world.rank(), world.size()).backward();
    optimizer.step();
  }
}

using Begin = std::function<void(fsdp::World&, Odd&, optim::Optimizer&)>;

/// `begin` on every rank of a sharded model, then the whole state, put together by brute force;
/// then steps up to `end`, and the whole state again.
Trained run(const Setup& setup, const Begin& begin, int end) {
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
    train(w, models[r], *optimizers[r], kStop, end);
    later[r] = fsdp::state_dict(models[r], *optimizers[r]);
    later[r].before_save();
  });
  out.later = Checkpoint::of(later);
  return out;
}

Begin trained_and_saved(const std::string& path) {
  return [=](fsdp::World& world, Odd& model, optim::Optimizer& optimizer) {
    train(world, model, optimizer, 0, kStop);
    tessera::save(path, fsdp::state_dict(model, optimizer), world.ranks());
  };
}

/// Values first made wrong, so that what is not loaded shows.
Begin loaded(const std::string& path) {
  return [=](fsdp::World& world, Odd& model, optim::Optimizer& optimizer) {
    {
      torch::NoGradGuard no_grad;
      for (auto& parameter : model->parameters()) parameter.fill_(-7);
      for (auto& buffer : model->buffers()) buffer.fill_(3);
    }
    const tessera::LoadResult result =
        tessera::load(path, fsdp::state_dict(model, optimizer), world.ranks());
    RANK_CHECK(result.missing.empty() && result.unexpected.empty() && result.mismatched.empty());
  };
}

/// Both layouts on either side, over all pairs; the same where the numbers of ranks are.
MemoryLayout layout_at(std::size_t which, std::size_t world) {
  return (which + world) % 2 == 0 ? MemoryLayout::kFlat : MemoryLayout::kPerParameter;
}

}  // namespace

TEST_CASE("every optimizer goes from every number of ranks to every other bit by bit") {
  const auto number = GENERATE(range(std::size_t{0}, cases().size()));
  const std::vector<Case> all = cases();
  const Case& which = all[number];
  for (std::size_t f = 0; f < std::size(kWorlds); ++f) {
    ScratchFolder folder;
    const std::string path = folder / "step_2";
    const Trained saved =
        run({which, kWorlds[f], layout_at(number, f)}, trained_and_saved(path), kEnd);
    for (const char* trained : {"model.embed.weight", "optim.state.embed.weight."}) {
      const auto at = saved.stopped.tensors.lower_bound(trained);
      REQUIRE(at != saved.stopped.tensors.end());
      REQUIRE(at->first.starts_with(trained));
      CHECK_FALSE(same_bits(at->second, saved.later.tensors.at(at->first)));
    }
    for (std::size_t t = 0; t < std::size(kWorlds); ++t) {
      CAPTURE(which.name, kWorlds[f], kWorlds[t]);
      const bool goes_on = f == t;
      const Trained again =
          run({which, kWorlds[t], layout_at(number, t)}, loaded(path), goes_on ? kEnd : kStop);
      check_equal(again.stopped, saved.stopped);
      if (goes_on) check_equal(again.later, saved.later);
    }
  }
}

TEST_CASE("every optimizer comes through a reshard between two numbers of ranks bit by bit") {
  struct Chain {
    int from, by, to;
  };
  const Chain chains[] = {{4, 6, 3}, {1, 8, 2}, {8, 3, 4}, {3, 1, 8}, {2, 5, 1}, {8, 16, 8}};
  const auto number = GENERATE(range(std::size_t{0}, cases().size()));
  const std::vector<Case> all = cases();
  REQUIRE(all.size() == std::size(chains));
  const Chain& chain = chains[number];
  CAPTURE(all[number].name, chain.from, chain.by, chain.to);
  ScratchFolder folder;
  const std::string path = folder / "step_2";
  const Trained saved = run({all[number], chain.from}, trained_and_saved(path), kEnd);
  tessera::ConvertOptions options;
  options.source = path;
  options.destination = folder / "resharded";
  options.target.world_size = chain.by;
  tessera::convert(*tessera::make_posix_file_system(), options);
  const bool goes_on = chain.to == chain.from;
  const Trained again =
      run({all[number], chain.to}, loaded(options.destination), goes_on ? kEnd : kStop);
  check_equal(again.stopped, saved.stopped);
  if (goes_on) check_equal(again.later, saved.later);
}

}  // namespace state_table_test
