// LOCAL state dicts of model and optimizer: flat parameters as they lie, and the optimizer's state
// of them under the same names.
#include <tessera/base/error.h>

#include "tests/fsdp/state_support.h"
#include "tests/fsdp/torch_and_catch.h"

namespace state_local_test {

namespace fsdp = tessera::fsdp;
namespace optim = torch::optim;
using namespace tessera::fsdp::test;

namespace {

fsdp::StateDictOptions local() {
  fsdp::StateDictOptions options;
  options.type = fsdp::StateDictType::kLocal;
  return options;
}

void shard_without_mesh(Odd& model, fsdp::World& world) {
  fsdp::Options options;
  options.process_group = world.communicator();
  shard_odd(model, options);
}

struct Ranks {
  std::vector<Odd> models;
  std::vector<std::unique_ptr<optim::Optimizer>> optimizers;
  std::vector<tessera::LiveState> states;
};

template <class O>
Ranks run(int world, const O& make, const std::string& from, const std::string& to) {
  Ranks out;
  for (int r = 0; r < world; ++r) out.models.push_back(make_odd(true));
  out.optimizers.resize(out.models.size());
  out.states.resize(out.models.size());
  fsdp::run_threads(world, [&](fsdp::World& w) {
    const auto r = static_cast<std::size_t>(w.rank());
    Odd& model = out.models[r];
    shard_without_mesh(model, w);
    out.optimizers[r] = make(once_each(model->parameters()));
    optim::Optimizer& optimizer = *out.optimizers[r];
    if (from.empty()) {
      train_odd(model, optimizer, 0, 2, w.rank(), world);
    } else {
      {
        const torch::NoGradGuard no_grad;
        for (torch::Tensor& parameter : model->parameters()) parameter.fill_(-7);
      }
      const tessera::LoadResult result =
          tessera::load(from, fsdp::state_dict(model, optimizer, local()), w.ranks());
      RANK_CHECK(result.missing.empty() && result.unexpected.empty());
    }
    if (!to.empty()) tessera::save(to, fsdp::state_dict(model, optimizer, local()), w.ranks());
    out.states[r] = fsdp::state_dict(model, optimizer);
    out.states[r].before_save();
  });
  return out;
}

}  // namespace

TEST_CASE("a local state dict of an optimizer is loaded on another number of ranks") {
  const auto make = [](std::vector<torch::Tensor> parameters) -> std::unique_ptr<optim::Optimizer> {
    return std::make_unique<optim::AdamW>(std::move(parameters),
                                          optim::AdamWOptions(1e-2).amsgrad(true));
  };
  const ScratchFolder folder;
  const Checkpoint saved = Checkpoint::of(run(3, make, "", folder / "a").states);
  for (const int world : {1, 2, 3, 8}) {
    CAPTURE(world);
    const Checkpoint found = Checkpoint::of(run(world, make, folder / "a", "").states);
    REQUIRE(found.tensors.size() == saved.tensors.size());
    for (const auto& [name, tensor] : saved.tensors) {
      CAPTURE(name);
      CHECK(same_bits(found.tensors.at(name), tensor));
    }
  }
}

TEST_CASE("a local state dict keeps the memory of the optimizer's state alive") {
  fsdp::run_threads(2, [&](fsdp::World& world) {
    Odd model = make_odd(true);
    shard_without_mesh(model, world);
    optim::AdamW optimizer(once_each(model->parameters()));
    train_odd(model, optimizer, 0, 2, world.rank(), 2);
    const tessera::LiveState state = fsdp::state_dict(model, optimizer, local());
    const auto moments = [&] {
      std::vector<float> out;
      for (const tessera::StateEntry& entry : state.dict().entries) {
        if (!entry.name.ends_with(".exp_avg")) continue;
        for (const auto& piece : state.tensors()[entry.value.tensor_index()].pieces) {
          const auto* first = static_cast<const float*>(piece.data);
          out.insert(out.end(), first, first + piece.chunk.numel());
        }
      }
      return out;
    };
    const std::vector<float> before = moments();
    RANK_CHECK(before.size() > 50);
    optimizer.state().clear();
    std::vector<torch::Tensor> others;  // in memory that would be free
    for (std::int64_t numel = 1; numel < 400; ++numel) others.push_back(torch::full({numel}, 7.0F));
    RANK_CHECK(moments() == before);
  });
}

TEST_CASE("a local state dict names flat parameters in state and groups") {
  fsdp::run_threads(2, [&](fsdp::World& world) {
    Odd model = make_odd(true);
    shard_without_mesh(model, world);
    optim::SGD optimizer(model->parameters(), optim::SGDOptions(1e-2).momentum(0.9));
    train_odd(model, optimizer, 0, 1, world.rank(), 2);
    const tessera::LiveState state = fsdp::state_dict(model, optimizer, local());
    const tessera::LiveTensor* flat = find_tensor(state, "model.inner._flat_param");
    const tessera::LiveTensor* moment =
        find_tensor(state, "optim.state.inner._flat_param.momentum_buffer");
    RANK_CHECK(flat != nullptr && moment != nullptr);
    RANK_CHECK(moment->spec == flat->spec);
    RANK_CHECK(find_tensor(state, "optim.state.inner.a.weight.momentum_buffer") == nullptr);
    const tessera::ValueList& listed = find_value(state, "optim.param_groups.0.params")->as_list();
    RANK_CHECK(listed.size() == 2);
    RANK_CHECK(listed[1] == tessera::Value::string("inner._flat_param"));
    // What it holds is the state of its parameters, end to end.
    std::int64_t held = 0;
    for (const tessera::LivePiece& piece : moment->pieces) held += piece.chunk.numel();
    RANK_CHECK(held == flat->pieces[0].chunk.numel());
  });
}

TEST_CASE("the names of one buffer are held against each other in a local state dict too") {
  const auto sharded = [](fsdp::World& world) {
    Odd model = make_odd(false);
    model->register_buffer("twin", model->history);
    shard_without_mesh(model, world);
    return model;
  };
  std::vector<Odd> models(2, nullptr);
  std::vector<tessera::LiveState> states(2);
  fsdp::run_threads(2, [&](fsdp::World& world) {
    const auto r = static_cast<std::size_t>(world.rank());
    models[r] = sharded(world);
    states[r] = fsdp::state_dict(models[r], local());
    states[r].before_save();
  });
  Checkpoint other = Checkpoint::of(states), one = other;
  REQUIRE(other.tensors.contains("model.twin"));
  one.remove("model.twin");
  other.put({tessera::key_item("model"), tessera::key_item("twin")},
            other.tensors.at("model.twin") + 1);
  fsdp::run_threads(2, [&](fsdp::World& world) {
    Odd model = sharded(world);
    RANK_CHECK(one.load_into(fsdp::state_dict(model, local())).empty());
    const std::string message =
        message_of([&] { other.load_into(fsdp::state_dict(model, local())); });
    RANK_CHECK(message.find("\"model.history\" and \"model.twin\" are one parameter here and "
                            "differ") != std::string::npos,
               message);
  });
}

TEST_CASE("a local state dict of other units is refused before anything lands") {
  const auto make = [](std::vector<torch::Tensor> parameters) -> std::unique_ptr<optim::Optimizer> {
    return std::make_unique<optim::AdamW>(std::move(parameters));
  };
  const ScratchFolder folder;
  run(3, make, "", folder / "a");
  fsdp::run_threads(2, [&](fsdp::World& world) {
    Odd nested = make_odd(true), smaller = make_odd(false);
    fsdp::Options options;
    options.process_group = world.communicator();
    fully_shard(nested, options);  // one unit where the checkpoint has two
    shard_without_mesh(smaller, world);
    const auto refused = [&](Odd& model, const char* expected) {
      optim::AdamW optimizer(once_each(model->parameters()));
      train_odd(model, optimizer, 0, 1, world.rank(), 2);
      std::vector<torch::Tensor> before;
      for (const torch::Tensor& parameter : model->parameters())
        before.push_back(parameter.detach().clone());
      const std::string message = message_of([&] {
        tessera::load(folder / "a", fsdp::state_dict(model, optimizer, local()), world.ranks());
      });
      RANK_CHECK(message.find(expected) != std::string::npos, message);
      for (std::size_t p = 0; p < before.size(); ++p)
        RANK_CHECK(same_bits(model->parameters()[p], before[p]));
    };
    refused(nested, "tensor \"model._flat_param\": expected float32 [230], found float32 [133]");
    refused(smaller, "tensor \"model._flat_param\": expected float32 [132], found float32 [133]");
  });
}

TEST_CASE("parameters of one flat parameter that the optimizer treats apart are refused") {
  const auto message = [](const std::function<void(Odd&)>& act, bool split_groups,
                          bool all = true) {
    Odd model = make_odd(true);
    shard_odd(model, {});
    std::vector<torch::Tensor> first, second;
    for (const auto& item : model->inner->named_parameters())
      (item.key() == "a.bias" ? second : first).push_back(item.value());
    std::vector<optim::OptimizerParamGroup> groups;
    groups.emplace_back(first);
    if (split_groups) groups.emplace_back(second);
    if (!split_groups && all)
      groups[0].params().insert(groups[0].params().end(), second.begin(), second.end());
    optim::AdamW optimizer(groups, optim::AdamWOptions(1e-2));
    odd_loss(model, 0, 0, 1).backward();
    optimizer.step();
    if (act) {
      auto& state = static_cast<optim::AdamWParamState&>(
          *optimizer.state().at(model->inner->parameters()[3].unsafeGetTensorImpl()));
      state.step(5);
    }
    return message_of([&] { fsdp::state_dict(model, optimizer, local()); });
  };
  CHECK_THAT(message({}, true), Catch::Contains("LOCAL of inner._flat_param") &&
                                    Catch::Contains("\"inner.a.bias\" is in group 1"));
  CHECK_THAT(message({}, false, false), Catch::Contains("LOCAL of inner._flat_param") &&
                                            Catch::Contains("does not have its parameter"));
  CHECK_THAT(message([](Odd&) {}, false), Catch::Contains("optim.state.inner._flat_param.step") &&
                                              Catch::Contains("step 1") &&
                                              Catch::Contains("\"inner.b.bias\" step 5"));
  CHECK(message({}, false).empty());
}

}  // namespace state_local_test
