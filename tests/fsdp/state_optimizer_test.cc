#include <tessera/base/error.h>
#include <tessera/state/roles.h>

#include "tests/fsdp/state_support.h"
#include "tests/fsdp/torch_and_catch.h"

namespace fsdp = tessera::fsdp;
namespace optim = torch::optim;
using namespace tessera::fsdp::test;
using fsdp::MemoryLayout;
using tessera::Value;

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

void train(Odd& model, optim::Optimizer& optimizer, int from, int to, int rank, int world) {
  for (int step = from; step < to; ++step) {
    optimizer.zero_grad();
    odd_loss(model, step, rank, world).backward();
    optimizer.step();
  }
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
    train(models[r], *optimizers[r], 0, steps, w.rank(), world);
    states[r] = fsdp::state_dict(models[r], *optimizers[r]);
    states[r].before_save();
    w.ranks().barrier();
    if (w.rank() == 0) out.checkpoint = Checkpoint::of(states);
    w.ranks().barrier();
    train(models[r], *optimizers[r], steps, steps + and_then, w.rank(), world);
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
    train(models[r], *optimizer, 3, 5, w.rank(), kWorld);
    resumed[r] = fsdp::state_dict(models[r]);
  });
  for (const auto& [name, expected] : reference.weights_later)
    if (name != "model.tokens") CHECK(same_bits(assembled(resumed, name), expected));
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

TEST_CASE("two groups keep their members and options, whatever order they come back in") {
  const auto make = [](Odd& model, bool swapped) {
    std::vector<torch::Tensor> first, second;
    for (const auto& item : model->named_parameters())
      (item.key().find("weight") != std::string::npos ? first : second).push_back(item.value());
    std::vector<optim::OptimizerParamGroup> groups;
    groups.emplace_back(first, std::make_unique<optim::AdamWOptions>(
                                   optim::AdamWOptions(0.25).weight_decay(0.5).betas({0.7, 0.8})));
    groups.emplace_back(second, std::make_unique<optim::AdamWOptions>(
                                    optim::AdamWOptions(0.125).weight_decay(0.0625)));
    if (swapped) std::swap(groups[0], groups[1]);
    return std::make_unique<optim::AdamW>(groups, optim::AdamWOptions(3));
  };
  Odd source = make_odd(true), target = make_odd(true);
  auto saved = make(source, false);
  train(source, *saved, 0, 2, 0, 1);
  const Checkpoint checkpoint = Checkpoint::of({fsdp::state_dict(source, *saved)});
  auto loaded = make(target, true);
  for (auto& group : loaded->param_groups()) {
    auto& options = static_cast<optim::AdamWOptions&>(group.options());
    options.lr(9).weight_decay(9).betas({0.1, 0.1}).eps(9).amsgrad(true);
  }
  CHECK(checkpoint.load_into(fsdp::state_dict(target, *loaded)).empty());
  const auto options = [&](std::size_t g) -> optim::AdamWOptions& {
    return static_cast<optim::AdamWOptions&>(loaded->param_groups()[g].options());
  };
  CHECK(options(1).lr() == 0.25);
  CHECK(options(1).betas() == std::make_tuple(0.7, 0.8));
  CHECK(options(1).weight_decay() == 0.5);
  CHECK(options(0).lr() == 0.125);
  CHECK(options(0).eps() == 1e-8);
  CHECK_FALSE(options(0).amsgrad());
  train(source, *saved, 2, 4, 0, 1);
  train(target, *loaded, 2, 4, 0, 1);
  for (const auto& item : source->named_parameters())
    CHECK(same_bits(item.value(), target->named_parameters()[item.key()]));
}

TEST_CASE("keys of a group that the class does not know are kept and written back") {
  Odd model = make_odd(true);
  optim::AdamW optimizer(model->parameters(), optim::AdamWOptions(0.5));
  train(model, optimizer, 0, 1, 0, 1);
  Checkpoint checkpoint = Checkpoint::of({fsdp::state_dict(model, optimizer)});
  const tessera::Path group = {tessera::key_item("optim"), tessera::key_item("param_groups"),
                               tessera::index_item(0)};
  checkpoint.put(tessera::below(group, "initial_lr"), {}, Value::real(0.75));
  checkpoint.put(tessera::below(group, "foreach"), {}, Value::boolean(false));

  Odd other = make_odd(true);
  optim::AdamW target(other->parameters(), optim::AdamWOptions(0.1));
  CHECK(checkpoint.load_into(fsdp::state_dict(other, target)).empty());
  CHECK(static_cast<optim::AdamWOptions&>(target.param_groups()[0].options()).lr() == 0.5);
  const tessera::LiveState again = fsdp::state_dict(other, target);
  CHECK(*find_value(again, "optim.param_groups.0.initial_lr") == Value::real(0.75));
  CHECK(*find_value(again, "optim.param_groups.0.foreach") == Value::boolean(false));
  // torch::optim's own code still sees its options.
  train(other, target, 1, 2, 0, 1);
  std::stringstream archive;
  CHECK_NOTHROW(torch::save(target, archive));
}

TEST_CASE("a load without unknown keys leaves the options where they are") {
  Odd model = make_odd(true);
  optim::SGD optimizer(model->parameters(), optim::SGDOptions(0.5));
  const Checkpoint checkpoint = Checkpoint::of({fsdp::state_dict(model, optimizer)});
  auto& options = static_cast<optim::SGDOptions&>(optimizer.param_groups()[0].options());
  options.lr(3);
  checkpoint.load_into(fsdp::state_dict(model, optimizer));
  CHECK(&options == &optimizer.param_groups()[0].options());
  CHECK(options.lr() == 0.5);
}

TEST_CASE("steps are read from whatever holds one number") {
  const auto [label, stored, value] = GENERATE(table<std::string, torch::Tensor, Value>({
      {"int", torch::Tensor(), Value::integer(5)},
      {"float", torch::Tensor(), Value::real(5)},
      {"0-dim float32", torch::full({}, 5.0f), Value()},
      {"0-dim int64", torch::full({}, 5, torch::kLong), Value()},
      {"one element", torch::full({1}, 5.0), Value()},
      {"0-dim bfloat16", torch::full({}, 5, torch::kBFloat16), Value()},
  }));
  CAPTURE(label);
  Odd model = make_odd(true);
  optim::AdamW optimizer(model->parameters());
  train(model, optimizer, 0, 2, 0, 1);
  Checkpoint checkpoint = Checkpoint::of({fsdp::state_dict(model, optimizer)});
  checkpoint.put({tessera::key_item("optim"), tessera::key_item("state"),
                  tessera::key_item("inner.a.bias"), tessera::key_item("step")},
                 stored, value);
  CHECK(checkpoint.load_into(fsdp::state_dict(model, optimizer)).empty());
  const auto step = [&](const torch::Tensor& parameter) {
    return static_cast<optim::AdamWParamState&>(
               *optimizer.state().at(parameter.unsafeGetTensorImpl()))
        .step();
  };
  CHECK(step(model->inner->a->bias) == 5);
  CHECK(step(model->inner->a->weight) == 2);
}

TEST_CASE("a step that float32 cannot hold, or that is no count, is refused by name") {
  Odd model = make_odd(true);
  optim::AdamW optimizer(model->parameters());
  train(model, optimizer, 0, 1, 0, 1);
  const tessera::Path path = {tessera::key_item("optim"), tessera::key_item("state"),
                              tessera::key_item("inner.a.bias"), tessera::key_item("step")};
  Checkpoint checkpoint = Checkpoint::of({fsdp::state_dict(model, optimizer)});
  checkpoint.put(path, {}, Value::integer(16777217));
  CHECK_THROWS_WITH(checkpoint.load_into(fsdp::state_dict(model, optimizer)),
                    Catch::Contains("optim.state.inner.a.bias.step") &&
                        Catch::Contains("16777217") && Catch::Contains("float32"));
  checkpoint.put(path, {}, Value::real(1.5));
  CHECK_THROWS_WITH(checkpoint.load_into(fsdp::state_dict(model, optimizer)),
                    Catch::Contains("1.5"));
  checkpoint.put(path, torch::zeros({2}));
  CHECK_THROWS_WITH(checkpoint.load_into(fsdp::state_dict(model, optimizer)),
                    Catch::Contains("one number"));
  auto& state = static_cast<optim::AdamWParamState&>(
      *optimizer.state().at(model->inner->a->bias.unsafeGetTensorImpl()));
  state.step(16777217);
  CHECK_THROWS_WITH(fsdp::state_dict(model, optimizer),
                    Catch::Contains("optim.state.inner.a.bias.step"));
}

TEST_CASE("what is stored decides which state there is") {
  Odd model = make_odd(true);
  optim::AdamW optimizer(model->parameters());
  train(model, optimizer, 0, 2, 0, 1);
  Checkpoint checkpoint = Checkpoint::of({fsdp::state_dict(model, optimizer)});
  const auto state = [&](const torch::Tensor& parameter) {
    return optimizer.state().count(parameter.unsafeGetTensorImpl());
  };

  SECTION("a parameter whose group lists it without state loses its own") {
    for (const char* leaf : {"step", "exp_avg", "exp_avg_sq"})
      checkpoint.remove(std::string("optim.state.inner.b.weight.") + leaf);
    CHECK(checkpoint.load_into(fsdp::state_dict(model, optimizer)).empty());
    CHECK(state(model->inner->b->weight) == 0);
    CHECK(state(model->inner->b->bias) == 1);
  }
  SECTION("half a state is corrupt") {
    checkpoint.remove("optim.state.inner.b.weight.exp_avg_sq");
    CHECK_THROWS_WITH(checkpoint.load_into(fsdp::state_dict(model, optimizer)),
                      Catch::Contains("inner.b.weight") && Catch::Contains("exp_avg_sq"));
    CHECK(state(model->inner->b->weight) == 1);
  }
  SECTION("a parameter that no group lists is missing") {
    for (const char* leaf : {"step", "exp_avg", "exp_avg_sq"})
      checkpoint.remove(std::string("optim.state.inner.b.weight.") + leaf);
    tessera::ValueList members;
    const tessera::StateEntry* listed =
        checkpoint.manifest.state.find("optim.param_groups.0.params");
    for (const Value& member : listed->value.as_list())
      if (member.as_string() != "inner.b.weight") members.push_back(member);
    const tessera::Path path = listed->path;
    checkpoint.put(path, {}, Value::list(members));
    const auto missing = checkpoint.load_into(fsdp::state_dict(model, optimizer));
    CHECK(missing == std::vector<std::string>{"optim.state.inner.b.weight.step",
                                              "optim.state.inner.b.weight.exp_avg",
                                              "optim.state.inner.b.weight.exp_avg_sq"});
    CHECK(state(model->inner->b->weight) == 1);
  }
  SECTION("state of a parameter that is frozen now is taken, and moves nothing") {
    model->inner->b->weight.set_requires_grad(false);
    optim::AdamW fresh(model->parameters());
    CHECK(checkpoint.load_into(fsdp::state_dict(model, fresh)).empty());
    CHECK(fresh.state().count(model->inner->b->weight.unsafeGetTensorImpl()) == 1);
  }
  SECTION("amsgrad's third moment comes and goes with the checkpoint") {
    Odd other = make_odd(true);
    optim::AdamW ams(other->parameters(), optim::AdamWOptions(1e-3).amsgrad(true));
    train(other, ams, 0, 1, 0, 1);
    CHECK(checkpoint.load_into(fsdp::state_dict(other, ams)).empty());
    auto& held = static_cast<optim::AdamWParamState&>(
        *ams.state().at(other->inner->b->weight.unsafeGetTensorImpl()));
    CHECK_FALSE(held.max_exp_avg_sq().defined());
    CHECK_FALSE(static_cast<optim::AdamWOptions&>(ams.param_groups()[0].options()).amsgrad());
    CHECK(held.step() == 2);
  }
}

TEST_CASE("making state for a load changes neither weights nor gradients nor steps") {
  Odd model = make_odd(true);
  optim::AdamW optimizer(model->parameters(), optim::AdamWOptions(1).weight_decay(0.5));
  train(model, optimizer, 0, 1, 0, 1);
  const Checkpoint checkpoint = Checkpoint::of({fsdp::state_dict(model, optimizer)});
  Odd other = make_odd(true);
  optim::AdamW fresh(other->parameters(), optim::AdamWOptions(1).weight_decay(0.5));
  other->embed->weight.mutable_grad() = torch::ones({11, 6});
  std::vector<torch::Tensor> before;
  for (const auto& parameter : other->parameters()) before.push_back(parameter.detach().clone());
  tessera::LiveState state = fsdp::state_dict(other, fresh);
  state.materialise(state, checkpoint.manifest);
  CHECK(fresh.state().empty());
  CHECK(same_bits(other->embed->weight.grad(), torch::ones({11, 6})));
  for (std::size_t p = 0; p < before.size(); ++p)
    CHECK(same_bits(other->parameters()[p], before[p]));
}

TEST_CASE("a checkpoint of Adam is refused for AdamW and the other way round") {
  Odd model = make_odd(true);
  optim::Adam adam(model->parameters());
  optim::AdamW adamw(model->parameters());
  const Checkpoint coupled = Checkpoint::of({fsdp::state_dict(model, adam)});
  const Checkpoint decoupled = Checkpoint::of({fsdp::state_dict(model, adamw)});
  CHECK_THROWS_WITH(coupled.load_into(fsdp::state_dict(model, adamw)),
                    Catch::Contains("optim.param_groups.0.decoupled_weight_decay") &&
                        Catch::Contains("torch::optim::AdamW") && Catch::Contains("is Adam's"));
  CHECK_THROWS_WITH(decoupled.load_into(fsdp::state_dict(model, adam)),
                    Catch::Contains("is AdamW's"));
  fsdp::FusedAdamW fused(model->parameters());
  CHECK(decoupled.load_into(fsdp::state_dict(model, fused)).empty());
}

TEST_CASE("options that the class cannot have are refused by key") {
  Odd model = make_odd(true);
  optim::SGD optimizer(model->parameters(), optim::SGDOptions(0.5).momentum(0.9));
  const tessera::Path group = {tessera::key_item("optim"), tessera::key_item("param_groups"),
                               tessera::index_item(0)};
  const auto message = [&](const char* key, Value value) {
    Checkpoint checkpoint = Checkpoint::of({fsdp::state_dict(model, optimizer)});
    checkpoint.put(tessera::below(group, key), {}, std::move(value));
    return message_of([&] { checkpoint.load_into(fsdp::state_dict(model, optimizer)); });
  };
  CHECK_THAT(message("maximize", Value::boolean(true)),
             Catch::Contains("optim.param_groups.0.maximize is True"));
  CHECK_THAT(message("lr", Value::string("high")),
             Catch::Contains("optim.param_groups.0.lr is no number"));
  CHECK_THAT(message("nesterov", Value::string("yes")), Catch::Contains("nesterov"));
  CHECK(message("lr", Value::integer(1)).empty());
}

TEST_CASE("SGD without momentum has None in Python and an undefined buffer here") {
  Odd model = make_odd(true), other = make_odd(true);
  optim::SGD plain(model->parameters(), optim::SGDOptions(0.5));
  train(model, plain, 0, 1, 0, 1);
  Checkpoint checkpoint = Checkpoint::of({fsdp::state_dict(model, plain)});
  const auto path = [](const char* fqn) -> tessera::Path {
    return {tessera::key_item("optim"), tessera::key_item("state"), tessera::key_item(fqn),
            tessera::key_item("momentum_buffer")};
  };
  for (const char* fqn : {"inner.a.weight", "inner.b.bias"}) checkpoint.put(path(fqn), {}, Value());
  optim::SGD target(other->parameters(), optim::SGDOptions(0.5).momentum(0.9));
  train(other, target, 0, 1, 0, 1);
  CHECK(checkpoint.load_into(fsdp::state_dict(other, target)).empty());
  const auto buffer_is_defined = [&](const torch::Tensor& parameter) {
    const auto found = target.state().find(parameter.unsafeGetTensorImpl());
    return found != target.state().end() &&
           static_cast<optim::SGDParamState&>(*found->second).momentum_buffer().defined();
  };
  CHECK_FALSE(buffer_is_defined(other->inner->a->weight));
  CHECK_FALSE(buffer_is_defined(other->inner->b->bias));
  CHECK(static_cast<optim::SGDOptions&>(target.param_groups()[0].options()).momentum() == 0);
  train(other, target, 1, 2, 0, 1);
  train(model, plain, 1, 2, 0, 1);
}

TEST_CASE("a tied parameter is read under any of its names, and differing values are refused") {
  Odd model = make_odd(true), other = make_odd(true);
  Checkpoint checkpoint = Checkpoint::of({fsdp::state_dict(model)});
  const auto path = [](const char* fqn) -> tessera::Path {
    return {tessera::key_item("model"), tessera::key_item(fqn)};
  };
  SECTION("equal values under both") {
    CHECK(checkpoint.load_into(fsdp::state_dict(other)).empty());
  }
  SECTION("the second alone") {
    checkpoint.remove("model.embed.weight");
    checkpoint.put(path("head.weight2"), torch::full({11, 6}, 2.5f));
    CHECK(checkpoint.load_into(fsdp::state_dict(other)).empty());
    CHECK(same_bits(other->embed->weight, torch::full({11, 6}, 2.5f)));
  }
  SECTION("the first alone") {
    checkpoint.remove("model.head.weight2");
    checkpoint.put(path("embed.weight"), torch::full({11, 6}, 3.5f));
    CHECK(checkpoint.load_into(fsdp::state_dict(other)).empty());
    CHECK(same_bits(other->embed->weight, torch::full({11, 6}, 3.5f)));
  }
  SECTION("neither") {
    checkpoint.remove("model.head.weight2");
    checkpoint.remove("model.embed.weight");
    CHECK(checkpoint.load_into(fsdp::state_dict(other)).size() == 2);
  }
  SECTION("different values") {
    checkpoint.put(path("head.weight2"), torch::full({11, 6}, 2.5f));
    CHECK_THROWS_WITH(
        checkpoint.load_into(fsdp::state_dict(other)),
        Catch::Contains("model.embed.weight") && Catch::Contains("model.head.weight2"));
  }
}

TEST_CASE("optimizers that a state dict cannot describe are refused by name") {
  Odd model = make_odd(true);
  optim::LBFGS lbfgs(model->parameters());
  CHECK_THROWS_WITH(fsdp::state_dict(model, lbfgs), Catch::Contains("torch::optim::LBFGS"));

  optim::SGD foreign({torch::zeros({4, 2}, torch::requires_grad())}, optim::SGDOptions(1));
  CHECK_THROWS_WITH(fsdp::state_dict(model, foreign),
                    Catch::Contains("parameter 0 of the optimizer's group 0 (shape [4,2])"));
  optim::SGD early(model->parameters(), optim::SGDOptions(1));
  shard_odd(model, {});
  CHECK_THROWS_WITH(fsdp::state_dict(model, early),
                    Catch::Contains("built before fully_shard") || Catch::Contains("none of the"));
}

TEST_CASE("ranks that count different steps are told apart by name and number") {
  std::string message;
  try {
    fsdp::run_threads(3, [&](fsdp::World& world) {
      fsdp::Options options;
      options.mesh = world.mesh();
      Odd model = make_odd(true);
      shard_odd(model, options);
      optim::AdamW optimizer(model->parameters());
      train(model, optimizer, 0, 2, world.rank(), 3);
      if (world.rank() == 2)
        static_cast<optim::AdamWParamState&>(
            *optimizer.state().at(model->inner->parameters()[0].unsafeGetTensorImpl()))
            .step(7);
      tessera::LiveState state = fsdp::state_dict(model, optimizer);
      state.before_save();
    });
  } catch (const tessera::Error& error) {
    message = error.what();
  }
  CHECK_THAT(message, Catch::Contains("inner.a.weight") && Catch::Contains("step 2 on rank") &&
                          Catch::Contains("step 7 on rank 2"));
}

TEST_CASE("an optimizer with groups alone is found as one") {
  Odd model = make_odd(true);
  optim::SGD optimizer(model->parameters(), optim::SGDOptions(0.5));
  const Checkpoint checkpoint = Checkpoint::of({fsdp::state_dict(model, optimizer)});
  const tessera::Roles roles = tessera::find_roles(checkpoint.manifest.state);
  REQUIRE(roles.optimizers.size() == 1);
  CHECK(roles.optimizers[0].name == "optim");
}

namespace {

/// An optimizer of a user's own, whose second moment is one number per parameter and kind.
struct Factored : optim::AdamW {
  using optim::AdamW::AdamW;
  torch::Tensor step(LossClosure = nullptr) override {
    const torch::NoGradGuard no_grad;
    for (auto& group : param_groups())
      for (torch::Tensor& parameter : group.params()) {
        auto& slot = state_[parameter.unsafeGetTensorImpl()];
        if (!slot) {
          auto made = std::make_unique<optim::AdamWParamState>();
          made->exp_avg(torch::zeros_like(parameter));
          made->exp_avg_sq(torch::zeros({2}));
          slot = std::move(made);
        }
        auto& state = static_cast<optim::AdamWParamState&>(*slot);
        state.step(state.step() + 1);
        state.exp_avg().add_(parameter, 0.5);
        state.exp_avg_sq().add_(0.25 * static_cast<double>(state.step()));
        parameter.add_(state.exp_avg(), -1e-2);
      }
    return {};
  }
};

}  // namespace

TEST_CASE("state of another shape is carried where it is declared and refused where it is not") {
  ScratchFolder folder;
  fsdp::StateDictOptions declared;
  declared.replicated_state = {"exp_avg_sq"};
  const std::string path = folder / "a";
  fsdp::run_threads(3, [&](fsdp::World& world) {
    fsdp::Options options;
    options.mesh = world.mesh();
    Odd model = make_odd(true);
    shard_odd(model, options);
    Factored optimizer(once_each(model->parameters()), optim::AdamWOptions(1e-2));
    for (int step = 0; step < 3; ++step) optimizer.step();
    const std::string message = message_of([&] { fsdp::state_dict(model, optimizer); });
    RANK_CHECK(message.find("exp_avg_sq has shape [2] on this rank") != std::string::npos, message);
    RANK_CHECK(message.find("replicated_state") != std::string::npos, message);
    tessera::save(path, fsdp::state_dict(model, optimizer, declared), world.ranks());
  });
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  fsdp::run_threads(2, [&](fsdp::World& world) {
    fsdp::Options options;
    options.mesh = world.mesh();
    options.layout = layout;
    Odd model = make_odd(layout == MemoryLayout::kFlat);
    shard_odd(model, options);
    Factored fresh(once_each(model->parameters()), optim::AdamWOptions(1e-2));
    tessera::LoadPolicy policy;  // (The per-parameter layout has no scalar.)
    policy.model = policy.optimizer = tessera::PartPolicy::kAllowUnexpected;
    tessera::load(path, fsdp::state_dict(model, fresh, declared), world.ranks(), policy);
    for (const torch::Tensor& parameter : model->parameters()) {
      auto& state =
          static_cast<optim::AdamWParamState&>(*fresh.state().at(parameter.unsafeGetTensorImpl()));
      RANK_CHECK(state.step() == 3);
      RANK_CHECK(same_bits(state.exp_avg_sq(), torch::full({2}, 1.5)));
      RANK_CHECK(state.exp_avg().sizes() == parameter.sizes());
    }
  });
}

TEST_CASE("an optimizer with a part of a sharded model is refused by the name of the root") {
  Odd model = make_odd(true);
  shard_odd(model, {});
  optim::SGD whole(model->parameters(), optim::SGDOptions(1));
  optim::SGD part(model->inner->parameters(), optim::SGDOptions(1));
  odd_loss(model, 0, 0, 1).backward();  // who is the root is known from the first forward on
  CHECK_THROWS_WITH(fsdp::state_dict(model->inner, part),
                    Catch::Contains("unit \"inner\" is not the root"));
  CHECK_NOTHROW(fsdp::state_dict(model, whole));
  CHECK_NOTHROW(fsdp::state_dict(model->inner));  // a model alone may be a part
}

TEST_CASE("ranks whose optimizers hold different parameters are told apart") {
  std::string message;
  try {
    fsdp::run_threads(2, [&](fsdp::World& world) {
      fsdp::Options options;
      options.mesh = world.mesh();
      Odd model = make_odd(true);
      shard_odd(model, options);
      std::vector<torch::Tensor> parameters = model->parameters();
      if (world.rank() == 1) parameters.erase(parameters.begin() + 3);
      optim::SGD optimizer(parameters, optim::SGDOptions(1));
      fsdp::state_dict(model, optimizer).before_save();
    });
  } catch (const tessera::Error& error) {
    message = error.what();
  }
  CHECK_THAT(message, Catch::Contains("parameters on this rank and") && Catch::Contains("on rank"));
}
