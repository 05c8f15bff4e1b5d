// What a checkpoint may hold of an optimizer, and of tied parameters: steps in every form, state
// that comes and goes with it.
#include <tessera/base/error.h>

#include "tests/fsdp/state_support.h"
#include "tests/fsdp/torch_and_catch.h"

namespace state_optimizer_stored_test {

namespace fsdp = tessera::fsdp;
namespace optim = torch::optim;
using namespace tessera::fsdp::test;
using tessera::Value;

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
  train_odd(model, optimizer, 0, 2, 0, 1);
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

TEST_CASE("a step that the group keeps is that of each of its parameters") {
  // As Apex and Transformer Engine keep it.
  Odd model = make_odd(true);
  optim::AdamW optimizer(model->parameters());
  train_odd(model, optimizer, 0, 2, 0, 1);
  Checkpoint checkpoint = Checkpoint::of({fsdp::state_dict(model, optimizer)});
  for (const std::string& name : names_of(fsdp::state_dict(model, optimizer)))
    if (name.starts_with("optim.state.") && name.ends_with(".step")) checkpoint.remove(name);
  const tessera::Path path = {tessera::key_item("optim"), tessera::key_item("param_groups"),
                              tessera::index_item(0), tessera::key_item("step")};
  SECTION("as a number") {
    checkpoint.put(path, {}, Value::integer(7));
    CHECK(checkpoint.load_into(fsdp::state_dict(model, optimizer)).empty());
    const tessera::LiveState again = fsdp::state_dict(model, optimizer);
    for (const char* fqn : {"inner.a.bias", "embed.weight"})
      CHECK(assembled({again}, "optim.state." + std::string(fqn) + ".step").item<float>() == 7);
    // It stands with the parameters from here on: a second one would stay behind.
    CHECK(find_value(again, "optim.param_groups.0.step") == nullptr);
  }
  SECTION("as a tensor") {
    checkpoint.put(path, torch::full({}, 7.0f));
    CHECK_THROWS_WITH(
        checkpoint.load_into(fsdp::state_dict(model, optimizer)),
        Catch::Contains("the step of \"") && Catch::Contains("is a tensor of its group"));
  }
  SECTION("nowhere") {
    CHECK_THROWS_WITH(checkpoint.load_into(fsdp::state_dict(model, optimizer)),
                      Catch::Contains("the checkpoint has state of \"") &&
                          Catch::Contains("no count of its steps"));
  }
}

TEST_CASE("a step that float32 cannot hold, or that is no count, is refused by name") {
  Odd model = make_odd(true);
  optim::AdamW optimizer(model->parameters());
  train_odd(model, optimizer, 0, 1, 0, 1);
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
  train_odd(model, optimizer, 0, 2, 0, 1);
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
    train_odd(other, ams, 0, 1, 0, 1);
    CHECK(checkpoint.load_into(fsdp::state_dict(other, ams)).empty());
    auto& held = static_cast<optim::AdamWParamState&>(
        *ams.state().at(other->inner->b->weight.unsafeGetTensorImpl()));
    CHECK_FALSE(held.max_exp_avg_sq().defined());
    CHECK_FALSE(static_cast<optim::AdamWOptions&>(ams.param_groups()[0].options()).amsgrad());
    CHECK(held.step() == 2);
  }
}

// LibTorch's Adagrad makes all state when it is made, and asserts that it is there.
TEST_CASE("Adagrad keeps the state that a checkpoint lists a parameter without") {
  Odd model = make_odd(true);
  optim::Adagrad optimizer(model->parameters());
  train_odd(model, optimizer, 0, 2, 0, 1);
  Checkpoint checkpoint = Checkpoint::of({fsdp::state_dict(model, optimizer)});
  for (const char* leaf : {"step", "sum"})
    checkpoint.remove(std::string("optim.state.inner.b.weight.") + leaf);
  CHECK(checkpoint.load_into(fsdp::state_dict(model, optimizer)) ==
        std::vector<std::string>{"optim.state.inner.b.weight.step",
                                 "optim.state.inner.b.weight.sum"});
  train_odd(model, optimizer, 2, 3, 0, 1);
}

namespace {

/// Saved by `optimizer`, without `leaf` of one parameter: refused while the group's option is `on`,
/// loaded while it is `off`.
void check_needed(Odd& model, optim::Optimizer& optimizer, const std::string& leaf,
                  const std::string& option, const Value& on, const Value& off) {
  CAPTURE(leaf, option);
  train_odd(model, optimizer, 0, 2, 0, 1);
  Checkpoint checkpoint = Checkpoint::of({fsdp::state_dict(model, optimizer)});
  const tessera::Path path = {tessera::key_item("optim"), tessera::key_item("param_groups"),
                              tessera::index_item(0), tessera::key_item(option)};
  REQUIRE(checkpoint.load_into(fsdp::state_dict(model, optimizer)).empty());
  checkpoint.remove("optim.state.inner.b.weight." + leaf);
  checkpoint.put(path, {}, on);
  CHECK_THROWS_WITH(checkpoint.load_into(fsdp::state_dict(model, optimizer)),
                    Catch::Contains("only a part of the optimizer's state of \"inner.b.weight\"") &&
                        Catch::Contains("\"" + leaf + "\" is not"));
  train_odd(model, optimizer, 2, 3, 0, 1);  // as if nothing had been asked
  checkpoint.put(path, {}, off);
  CHECK(checkpoint.load_into(fsdp::state_dict(model, optimizer)).empty());
  train_odd(model, optimizer, 2, 3, 0, 1);
}

}  // namespace

TEST_CASE("state that a step needs with the group's options is asked for") {
  Odd model = make_odd(true);
  const Value yes = Value::boolean(true), no = Value::boolean(false);
  optim::AdamW ams(model->parameters(), optim::AdamWOptions(1e-3).amsgrad(true));
  check_needed(model, ams, "max_exp_avg_sq", "amsgrad", yes, no);
  fsdp::FusedAdamW fused(model->parameters(), optim::AdamWOptions(1e-3).amsgrad(true));
  check_needed(model, fused, "max_exp_avg_sq", "amsgrad", yes, no);
  const auto rms = optim::RMSpropOptions(1e-3).momentum(0.9).centered(true);
  optim::RMSprop heavy(model->parameters(), rms), centered(model->parameters(), rms);
  check_needed(model, heavy, "momentum_buffer", "momentum", Value::real(0.9), Value::real(0));
  check_needed(model, centered, "grad_avg", "centered", yes, no);
}

TEST_CASE("optimizer state of a parameter is loaded whole or not at all") {
  Odd model = make_odd(true);
  optim::AdamW optimizer(model->parameters());
  train_odd(model, optimizer, 0, 2, 0, 1);
  const Checkpoint checkpoint = Checkpoint::of({fsdp::state_dict(model, optimizer)});
  tessera::LiveState state = fsdp::state_dict(model, optimizer);
  state.materialise(state, checkpoint.manifest);
  // As with allow_mismatched, where the leaf is stored in another shape.
  const auto without = [&](const std::string& leaf) {
    std::vector<std::string> names = names_of(state);
    std::erase_if(names, [&](const std::string& name) {
      return name.starts_with("optim.state.inner.b.weight.") && name.ends_with(leaf);
    });
    return names;
  };
  CHECK_THROWS_WITH(state.check_loaded(without("exp_avg_sq")),
                    Catch::Contains("\"optim.state.inner.b.weight.exp_avg\" would be loaded and "
                                    "\"optim.state.inner.b.weight.exp_avg_sq\" not"));
  state.check_loaded(without(""));
  state.check_loaded(names_of(state));
}

TEST_CASE("making state for a load changes neither weights nor gradients nor steps") {
  Odd model = make_odd(true);
  optim::AdamW optimizer(model->parameters(), optim::AdamWOptions(1).weight_decay(0.5));
  train_odd(model, optimizer, 0, 1, 0, 1);
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

namespace {

/// Undefined: as None in Python.
torch::Tensor momentum_of(optim::SGD& optimizer, const torch::Tensor& parameter) {
  const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
  return found == optimizer.state().end()
             ? torch::Tensor()
             : static_cast<optim::SGDParamState&>(*found->second).momentum_buffer();
}

/// With None as the momentum of two parameters.
Checkpoint with_none(Odd& model, optim::SGD& optimizer) {
  Checkpoint out = Checkpoint::of({fsdp::state_dict(model, optimizer)});
  for (const char* fqn : {"inner.a.weight", "inner.b.bias"}) {
    REQUIRE(out.manifest.state.find(std::string("optim.state.") + fqn + ".momentum_buffer") ==
            nullptr);
    out.put({tessera::key_item("optim"), tessera::key_item("state"), tessera::key_item(fqn),
             tessera::key_item("momentum_buffer")},
            {}, Value());
  }
  return out;
}

void check_same_parameters(Odd& found, Odd& expected) {
  for (const auto& item : expected->named_parameters()) {
    CAPTURE(item.key());
    CHECK(same_bits(found->named_parameters()[item.key()], item.value()));
  }
}

}  // namespace

TEST_CASE("SGD without momentum has None in Python and an undefined buffer here") {
  Odd model = make_odd(true), other = make_odd(true);
  optim::SGD plain(model->parameters(), optim::SGDOptions(0.5));
  train_odd(model, plain, 0, 1, 0, 1);
  const Checkpoint checkpoint = with_none(model, plain);
  optim::SGD target(other->parameters(), optim::SGDOptions(0.5).momentum(0.9));
  train_odd(other, target, 0, 2, 0, 1);
  CHECK(momentum_of(target, other->inner->a->weight).defined());
  CHECK(checkpoint.load_into(fsdp::state_dict(other, target)).empty());
  CHECK(static_cast<optim::SGDOptions&>(target.param_groups()[0].options()).momentum() == 0);
  for (const torch::Tensor& parameter : other->parameters())
    CHECK_FALSE(momentum_of(target, parameter).defined());
  train_odd(other, target, 1, 3, 0, 1);
  train_odd(model, plain, 1, 3, 0, 1);
  check_same_parameters(other, model);
  CHECK_FALSE(momentum_of(target, other->inner->a->weight).defined());
}

TEST_CASE("a parameter whose momentum is None goes on with its gradient, undampened") {
  constexpr double kRate = 0.25;
  const auto options = optim::SGDOptions(kRate).momentum(0.5).dampening(0.25);
  Odd model = make_odd(true), other = make_odd(true);
  optim::SGD kept(model->parameters(), options);
  train_odd(model, kept, 0, 2, 0, 1);
  for (const torch::Tensor& parameter : {model->inner->a->weight, model->inner->b->bias})
    kept.state().erase(parameter.unsafeGetTensorImpl());
  const Checkpoint checkpoint = with_none(model, kept);
  optim::SGD target(other->parameters(), optim::SGDOptions(9).momentum(0.1));
  train_odd(other, target, 0, 1, 0, 1);
  CHECK(checkpoint.load_into(fsdp::state_dict(other, target)).empty());
  const torch::Tensor weight = other->inner->a->weight, untouched = other->inner->a->bias;
  CHECK_FALSE(momentum_of(target, weight).defined());
  CHECK_FALSE(momentum_of(target, other->inner->b->bias).defined());
  CHECK(same_bits(momentum_of(target, untouched), momentum_of(kept, model->inner->a->bias)));
  CHECK(Checkpoint::of({fsdp::state_dict(other, target)})
            .manifest.state.find("optim.state.inner.a.weight.momentum_buffer") == nullptr);

  target.zero_grad();
  odd_loss(other, 2, 0, 1).backward();
  const torch::Tensor gradient = weight.grad().clone();
  const torch::Tensor expected = weight.detach().clone().add_(gradient, -kRate);
  target.step();
  CHECK(same_bits(momentum_of(target, weight), gradient));
  CHECK(same_bits(weight, expected));
  CHECK_FALSE(same_bits(momentum_of(target, untouched), untouched.grad()));

  train_odd(model, kept, 2, 4, 0, 1);
  train_odd(other, target, 3, 4, 0, 1);
  check_same_parameters(other, model);
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

}  // namespace state_optimizer_stored_test
