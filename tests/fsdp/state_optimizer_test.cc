// Every optimizer: its state by name and cut, through a stop, on other numbers of ranks, and the
// keys of its groups.
#include "tests/fsdp/state_support.h"
#include "tests/fsdp/torch_and_catch.h"

namespace state_optimizer_test {

namespace fsdp = tessera::fsdp;
namespace optim = torch::optim;
using namespace tessera::fsdp::test;
using fsdp::MemoryLayout;

namespace {

using MakeOptimizer = std::function<std::unique_ptr<optim::Optimizer>(std::vector<torch::Tensor>)>;

template <class O, class... Options>
MakeOptimizer maker(Options... options) {
  return [=](std::vector<torch::Tensor> params) -> std::unique_ptr<optim::Optimizer> {
    return std::make_unique<O>(std::move(params), options...);
  };
}

struct Case {
  std::string name;
  MakeOptimizer make;
  std::vector<std::string> leaves;  // of a trained parameter
};

std::vector<Case> cases() {
  return {
      {"Adam", maker<optim::Adam>(optim::AdamOptions(1e-2)), {"step", "exp_avg", "exp_avg_sq"}},
      {"AdamW amsgrad",
       maker<optim::AdamW>(optim::AdamWOptions(1e-2).amsgrad(true)),
       {"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"}},
      {"FusedAdamW",
       maker<fsdp::FusedAdamW>(optim::AdamWOptions(1e-2)),
       {"step", "exp_avg", "exp_avg_sq"}},
      {"FusedAdamW amsgrad",
       maker<fsdp::FusedAdamW>(optim::AdamWOptions(1e-2).amsgrad(true)),
       {"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"}},
      {"SGD", maker<optim::SGD>(optim::SGDOptions(1e-2)), {}},
      {"SGD momentum",
       maker<optim::SGD>(optim::SGDOptions(1e-2).momentum(0.9)),
       {"momentum_buffer"}},
      {"Adagrad", maker<optim::Adagrad>(optim::AdagradOptions(1e-2)), {"step", "sum"}},
      {"RMSprop", maker<optim::RMSprop>(optim::RMSpropOptions(1e-2)), {"step", "square_avg"}},
      {"RMSprop centered",
       maker<optim::RMSprop>(optim::RMSpropOptions(1e-2).momentum(0.9).centered(true)),
       {"step", "square_avg", "momentum_buffer", "grad_avg"}},
  };
}

/// What every rank's state holds after `steps` steps, as one checkpoint; `and_then` more steps give
/// the weights of a run that never stopped.
struct Run {
  Checkpoint checkpoint;
  std::map<std::string, torch::Tensor> weights_later;
};

Run run(const Case& which, int world, MemoryLayout layout, int steps, int and_then) {
  std::vector<tessera::LiveState> states(static_cast<std::size_t>(world)), later(states);
  std::vector<Odd> models;
  std::vector<std::unique_ptr<optim::Optimizer>> optimizers(states.size());
  for (int r = 0; r < world; ++r) models.push_back(make_odd(layout == MemoryLayout::kFlat));
  Run out;
  std::mutex once;
  std::atomic<int> arrived = 0;
  fsdp::run_threads(world, [&](fsdp::World& w) {
    const auto r = static_cast<std::size_t>(w.rank());
    fsdp::Options options;
    options.mesh = w.mesh();
    options.layout = layout;
    shard_odd(models[r], options);
    optimizers[r] = which.make(models[r]->parameters());
    train_odd(models[r], *optimizers[r], 0, steps, w.rank(), world);
    states[r] = fsdp::state_dict(models[r], *optimizers[r]);
    states[r].before_save();
    w.ranks().barrier();
    if (w.rank() == 0) out.checkpoint = Checkpoint::of(states);
    w.ranks().barrier();
    train_odd(models[r], *optimizers[r], steps, steps + and_then, w.rank(), world);
    later[r] = fsdp::state_dict(models[r]);
  });
  for (const std::string& name : names_of(later.front()))
    out.weights_later[name] = assembled(later, name);
  return out;
}

}  // namespace

TEST_CASE("optimizer state stands under its parameter's name and is cut as the parameter is") {
  const Case which = GENERATE(from_range(cases()));
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  CAPTURE(which.name);
  const Run result = run(which, 3, layout, 2, 0);
  std::vector<std::string> found;
  for (const auto& entry : result.checkpoint.manifest.state.entries)
    if (entry.name.starts_with("optim.state.inner.a.weight."))
      found.push_back(entry.name.substr(std::string("optim.state.inner.a.weight.").size()));
  CHECK(found == which.leaves);
  for (const std::string& leaf : which.leaves) {
    const torch::Tensor& tensor =
        result.checkpoint.tensors.at("optim.state.inner.a.weight." + leaf);
    if (leaf == "step") {
      CHECK(tensor.sizes().empty());
      CHECK(tensor.scalar_type() == torch::kFloat);
      CHECK(tensor.item<float>() == 2);
    } else {
      CHECK(tensor.sizes() == torch::IntArrayRef({7, 6}));
      CHECK(tensor.abs().sum().item<float>() > 0);
    }
  }
  // As PyTorch: the tied parameter has one state, under its first name.
  for (const auto& entry : result.checkpoint.manifest.state.entries)
    CHECK(!entry.name.starts_with("optim.state.head.weight2"));
}

TEST_CASE("a stopped and resumed run equals one that never stopped, bit by bit") {
  const Case which = GENERATE(from_range(cases()));
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  CAPTURE(which.name);
  constexpr int kWorld = 2;
  const Run reference = run(which, kWorld, layout, 3, 2);
  std::vector<tessera::LiveState> resumed(kWorld);
  std::vector<Odd> models;
  for (int r = 0; r < kWorld; ++r) models.push_back(make_odd(layout == MemoryLayout::kFlat));
  fsdp::run_threads(kWorld, [&](fsdp::World& w) {
    const auto r = static_cast<std::size_t>(w.rank());
    fsdp::Options options;
    options.mesh = w.mesh();
    options.layout = layout;
    {
      torch::NoGradGuard no_grad;
      for (auto& parameter : models[r]->parameters()) parameter.fill_(-7);
    }
    shard_odd(models[r], options);
    auto optimizer = which.make(models[r]->parameters());
    const auto missing = reference.checkpoint.load_into(fsdp::state_dict(models[r], *optimizer));
    RANK_CHECK(missing.empty(), missing.empty() ? "" : missing.front());
    train_odd(models[r], *optimizer, 3, 5, w.rank(), kWorld);
    resumed[r] = fsdp::state_dict(models[r]);
  });
  for (const auto& [name, expected] : reference.weights_later)
    CHECK(same_bits(assembled(resumed, name), expected));
}

TEST_CASE("state saved on one number of ranks is the same on another, flat or per parameter") {
  const Case which = cases()[1];
  const int to = GENERATE(1, 2, 4, 8);
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  Run saved = run(which, 3, MemoryLayout::kPerParameter, 2, 0);
  if (layout == MemoryLayout::kFlat)
    saved.checkpoint.put({tessera::key_item("model"), tessera::key_item("scalar")},
                         torch::full({}, 1.5));
  std::vector<tessera::LiveState> states(static_cast<std::size_t>(to));
  std::vector<Odd> models;
  std::vector<std::unique_ptr<optim::Optimizer>> optimizers(states.size());
  for (int r = 0; r < to; ++r) models.push_back(make_odd(layout == MemoryLayout::kFlat));
  fsdp::run_threads(to, [&](fsdp::World& w) {
    const auto r = static_cast<std::size_t>(w.rank());
    fsdp::Options options;
    options.mesh = w.mesh();
    options.layout = layout;
    shard_odd(models[r], options);
    optimizers[r] = which.make(models[r]->parameters());
    saved.checkpoint.load_into(fsdp::state_dict(models[r], *optimizers[r]));
    states[r] = fsdp::state_dict(models[r], *optimizers[r]);
    states[r].before_save();
  });
  const Checkpoint again = Checkpoint::of(states);
  CAPTURE(to);
  for (const auto& [name, tensor] : saved.checkpoint.tensors) {
    CAPTURE(name);
    CHECK(same_bits(again.tensors.at(name), tensor));
  }
  for (const auto& entry : saved.checkpoint.manifest.state.entries)
    if (!entry.value.is_tensor() && !entry.name.ends_with(".params"))
      CHECK(again.manifest.state.find(entry.name)->value == entry.value);
}

TEST_CASE("steps are of the moment that their moments are of") {
  fsdp::run_threads(2, [&](fsdp::World& world) {
    fsdp::Options options;
    options.mesh = world.mesh();
    Odd model = make_odd(false);
    shard_odd(model, options);
    optim::AdamW optimizer(once_each(model->parameters()));
    train_odd(model, optimizer, 0, 2, world.rank(), 2);
    const auto made = [&](fsdp::StateDictType type, bool even_chunks) {
      fsdp::StateDictOptions form;
      form.type = type;
      form.even_chunks = even_chunks;
      return fsdp::state_dict(model, optimizer, form);
    };
    const std::vector<tessera::LiveState> gathered = {made(fsdp::StateDictType::kFull, false),
                                                      made(fsdp::StateDictType::kSharded, true)};
    const tessera::LiveState borrowed = made(fsdp::StateDictType::kSharded, false);
    train_odd(model, optimizer, 2, 3, world.rank(), 2);
    const auto step_of = [&](const tessera::LiveState& state) {
      state.before_save();
      const auto* live = find_tensor(state, "optim.state.inner.a.bias.step");
      return *static_cast<const float*>(live->pieces[0].data);
    };
    for (const tessera::LiveState& state : gathered) RANK_CHECK(step_of(state) == 2);
    RANK_CHECK(step_of(borrowed) == 3);
  });
}

TEST_CASE("a state whose optimizer keeps other state by now is not saved") {
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  fsdp::run_threads(2, [&](fsdp::World& world) {
    fsdp::Options options;
    options.mesh = world.mesh();
    options.layout = layout;
    Odd model = make_odd(false);
    shard_odd(model, options);
    optim::AdamW optimizer(once_each(model->parameters()));
    const auto check_refused = [&](const tessera::LiveState& state, const std::string& why) {
      const std::string message = message_of([&] { state.before_save(); });
      RANK_CHECK(message.find(why + " when this state was taken") != std::string::npos, message);
      RANK_CHECK(message.find("\"empty\"") != std::string::npos, message);
      RANK_CHECK(message.find("take the state anew") != std::string::npos, message);
    };
    const tessera::LiveState early = fsdp::state_dict(model, optimizer);
    fsdp::StateDictOptions full;
    full.type = fsdp::StateDictType::kFull;
    const tessera::LiveState gathered = fsdp::state_dict(model, optimizer, full);
    early.before_save();
    train_odd(model, optimizer, 0, 1, world.rank(), 2);
    check_refused(early, "has optimizer state now and had none");
    gathered.before_save();  // all of it is of the moment it was taken
    const tessera::LiveState trained = fsdp::state_dict(model, optimizer);
    train_odd(model, optimizer, 1, 2, world.rank(), 2);
    trained.before_save();
    optimizer.state().clear();
    check_refused(trained, "has no optimizer state now and had some");
    train_odd(model, optimizer, 2, 3, world.rank(), 2);
    check_refused(trained, "has other optimizer state now than");
  });
}

TEST_CASE("a state that a load has used is not saved") {
  Odd model = make_odd(true);
  optim::AdamW optimizer(once_each(model->parameters()));
  train_odd(model, optimizer, 0, 1, 0, 1);
  const Checkpoint checkpoint = Checkpoint::of({fsdp::state_dict(model, optimizer)});
  const tessera::LiveState state = fsdp::state_dict(model, optimizer);
  CHECK(checkpoint.load_into(state).empty());
  CHECK(checkpoint.load_into(state).empty());  // a load may be tried again
  CHECK_THAT(message_of([&] { state.before_save(); }),
             Catch::Contains(
                 "the state with optimizer \"optim\" was used by a load and cannot be saved") &&
                 Catch::Contains("take the state anew"));
}

TEST_CASE("groups have the keys and defaults of PyTorch's classes") {
  // As PyTorch 2.13 prints optimizer.state_dict()["param_groups"][0] (without params).
  const std::map<std::string, std::string> expected = {
      {"Adam",
       "lr betas eps weight_decay amsgrad maximize foreach capturable differentiable fused "
       "decoupled_weight_decay"},
      {"SGD", "lr momentum dampening weight_decay nesterov maximize foreach differentiable fused"},
      {"Adagrad",
       "lr lr_decay eps weight_decay initial_accumulator_value foreach maximize differentiable "
       "fused"},
      {"RMSprop",
       "lr momentum alpha eps centered weight_decay capturable foreach maximize differentiable"}};
  for (const Case& which : cases()) {
    Odd model = make_odd(true);
    auto optimizer = which.make(model->parameters());
    const tessera::LiveState state = fsdp::state_dict(model, *optimizer);
    std::string keys;
    for (const std::string& name : names_of(state))
      if (name.starts_with("optim.param_groups.0.") && !name.ends_with(".params"))
        keys += (keys.empty() ? "" : " ") + name.substr(21);
    std::string kind = which.name.substr(0, which.name.find(' '));
    if (kind == "AdamW" || kind == "FusedAdamW") {
      CHECK(find_value(state, "optim.param_groups.0.decoupled_weight_decay")->as_bool());
      kind = "Adam";
    }
    CHECK(keys == expected.at(kind));
    CHECK(find_value(state, "optim.param_groups.0.foreach")->is_none());
    CHECK(!find_value(state, "optim.param_groups.0.maximize")->as_bool());
    CHECK(find_value(state, "optim.param_groups.0.lr")->as_real() == 1e-2);
  }
}

}  // namespace state_optimizer_test
