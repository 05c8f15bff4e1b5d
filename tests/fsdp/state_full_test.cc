#include <tessera/base/error.h>

#include "tests/fsdp/state_support.h"
#include "tests/fsdp/torch_and_catch.h"

namespace state_full_test {

namespace fsdp = tessera::fsdp;
namespace optim = torch::optim;
using namespace tessera::fsdp::test;
using fsdp::MemoryLayout;
using fsdp::StateDictOptions;
using fsdp::StateDictType;

namespace {

constexpr int kWorld = 3;

StateDictOptions full(bool rank0_only) {
  StateDictOptions options;
  options.type = StateDictType::kFull;
  options.rank0_only = rank0_only;
  return options;
}

/// States of all ranks after two steps, in several forms.
struct Forms {
  std::vector<Odd> models;
  std::vector<std::unique_ptr<optim::AdamW>> optimizers;
  std::vector<tessera::LiveState> sharded, asked;
};

Forms forms(const fsdp::Options& base, const StateDictOptions& asked, bool hybrid = false) {
  const int world = hybrid ? 4 : kWorld;
  Forms out;
  for (int r = 0; r < world; ++r) out.models.push_back(make_odd(false));
  out.optimizers.resize(static_cast<std::size_t>(world));
  out.sharded.resize(out.optimizers.size());
  out.asked.resize(out.optimizers.size());
  fsdp::run_threads(world, [&](fsdp::World& w) {
    const auto r = static_cast<std::size_t>(w.rank());
    fsdp::Options options = base;
    options.mesh = hybrid ? fsdp::DeviceMesh(w, {2, 2}, {"replicate", "shard"}) : w.mesh();
    shard_odd(out.models[r], options);
    out.optimizers[r] = std::make_unique<optim::AdamW>(out.models[r]->parameters());
    for (int step = 0; step < 2; ++step) {
      out.optimizers[r]->zero_grad();
      odd_loss(out.models[r], step, w.rank(), w.size()).backward();
      out.optimizers[r]->step();
    }
    out.sharded[r] = fsdp::state_dict(out.models[r], *out.optimizers[r]);
    out.asked[r] = fsdp::state_dict(out.models[r], *out.optimizers[r], asked);
  });
  return out;
}

std::size_t tensors_in(const tessera::LiveState& state) {
  std::size_t count = 0;
  for (const auto& entry : state.dict().entries) count += entry.value.is_tensor();
  return count;
}

}  // namespace

TEST_CASE("a full state dict holds whole tensors on every rank") {
  fsdp::Options options;
  options.layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  const Forms found = forms(options, full(false));
  for (const tessera::LiveState& state : found.asked) {
    CHECK(names_of(state) == names_of(found.sharded[0]));
    for (const auto& entry : state.dict().entries)
      if (entry.value.is_tensor())
        CHECK(same_bits(assembled({state}, entry.name), assembled(found.sharded, entry.name)));
  }
}

TEST_CASE("a full state dict for rank 0 leaves the others with what is not sharded") {
  fsdp::Options options;
  options.layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  const bool hybrid = GENERATE(false, true);
  if (hybrid) options.strategy = fsdp::ShardingStrategy::kHybridShard;
  const Forms found = forms(options, full(true), hybrid);
  for (const auto& entry : found.sharded[0].dict().entries)
    if (entry.value.is_tensor())
      CHECK(
          same_bits(assembled({found.asked[0]}, entry.name), assembled(found.sharded, entry.name)));
  for (std::size_t r = 1; r < found.asked.size(); ++r) {
    CHECK(find_tensor(found.asked[r], "model.inner.a.weight") == nullptr);
    CHECK(find_tensor(found.asked[r], "model.history") != nullptr);
    CHECK(find_tensor(found.asked[r], "optim.state.inner.a.weight.exp_avg") == nullptr);
    CHECK(tensors_in(found.asked[r]) < tensors_in(found.asked[0]));
  }
}

TEST_CASE("a full state dict is saved, and loaded back into shards") {
  const bool rank0_only = GENERATE(false, true);
  const MemoryLayout layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  ScratchFolder folder;
  const std::string path = folder / "full";
  std::vector<tessera::LiveState> before(kWorld), after(kWorld);
  std::vector<Odd> models;
  std::vector<std::unique_ptr<optim::AdamW>> optimizers(2 * kWorld);
  for (int r = 0; r < 2 * kWorld; ++r) models.push_back(make_odd(false));
  fsdp::run_threads(kWorld, [&](fsdp::World& w) {
    const auto r = static_cast<std::size_t>(w.rank()), other = r + kWorld;
    fsdp::Options options;
    options.mesh = w.mesh();
    options.layout = layout;
    shard_odd(models[r], options);
    shard_odd(models[other], options);
    optimizers[r] = std::make_unique<optim::AdamW>(models[r]->parameters());
    optimizers[other] = std::make_unique<optim::AdamW>(models[other]->parameters());
    odd_loss(models[r], 1, w.rank(), kWorld).backward();
    optimizers[r]->step();
    tessera::save(path, fsdp::state_dict(models[r], *optimizers[r], full(rank0_only)), w.ranks());
    const auto result = tessera::load(
        path, fsdp::state_dict(models[other], *optimizers[other], full(rank0_only)), w.ranks());
    RANK_CHECK(result.missing.empty() && result.unexpected.empty());
    before[r] = fsdp::state_dict(models[r], *optimizers[r]);
    after[r] = fsdp::state_dict(models[other], *optimizers[other]);
    before[r].before_save();
    after[r].before_save();
  });
  const Checkpoint expected = Checkpoint::of(before), found = Checkpoint::of(after);
  CHECK(found.tensors.size() == expected.tensors.size());
  for (const auto& [name, tensor] : expected.tensors) {
    CAPTURE(name, rank0_only);
    REQUIRE(found.tensors.contains(name));
    CHECK(same_bits(found.tensors.at(name), tensor));
  }
}

TEST_CASE("a local state dict holds flat parameters, and loads on another number of ranks") {
  ScratchFolder folder;
  const std::string path = folder / "local";
  StateDictOptions local;
  local.type = StateDictType::kLocal;
  const Odd plain = make_odd(true);
  const auto sharded = [](Odd& model, fsdp::World& world) {
    fsdp::Options options;
    options.process_group = world.communicator();
    shard_odd(model, options);
  };
  fsdp::run_threads(3, [&](fsdp::World& world) {
    Odd model = make_odd(true);
    sharded(model, world);
    const tessera::LiveState state = fsdp::state_dict(model, local);
    const std::vector<std::string> expected = {"model._flat_param", "model.tokens", "model.history",
                                               "model.inner._flat_param"};
    RANK_CHECK(names_of(state) == expected, names_of(state).front());
    tessera::save(path, state, world.ranks());
  });
  std::vector<tessera::LiveState> states(2);
  std::vector<Odd> models = {make_odd(true), make_odd(true)};
  fsdp::run_threads(2, [&](fsdp::World& world) {
    const auto r = static_cast<std::size_t>(world.rank());
    {
      torch::NoGradGuard no_grad;
      for (auto& parameter : models[r]->parameters()) parameter.fill_(-3);
    }
    sharded(models[r], world);
    tessera::load(path, fsdp::state_dict(models[r], local), world.ranks());
    states[r] = fsdp::state_dict(models[r]);
  });
  for (const auto& item : plain->named_parameters())
    CHECK(same_bits(assembled(states, "model." + item.key()), item.value()));
}

TEST_CASE("a full state that one rank has is scattered to all") {
  const bool rank0_only = GENERATE(false, true);
  const bool hybrid = GENERATE(false, true);
  fsdp::Options options;
  options.layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  if (hybrid) options.strategy = fsdp::ShardingStrategy::kHybridShard;
  Odd source = make_odd(false);
  optim::AdamW trained(source->parameters(), optim::AdamWOptions(0.125).weight_decay(0.5));
  for (int step = 0; step < 2; ++step) {
    odd_loss(source, step, 0, 1).backward();
    trained.step();
  }
  const tessera::LiveState whole = fsdp::state_dict(source, trained);
  const std::size_t world = hybrid ? 4 : kWorld;
  std::vector<tessera::LiveState> after(world);
  std::vector<Odd> models;
  std::vector<std::unique_ptr<optim::AdamW>> optimizers(world);
  for (std::size_t r = 0; r < world; ++r) models.push_back(make_odd(false));
  fsdp::run_threads(static_cast<int>(world), [&](fsdp::World& w) {
    const auto r = static_cast<std::size_t>(w.rank());
    fsdp::Options mine = options;
    mine.mesh = hybrid ? fsdp::DeviceMesh(w, {2, 2}, {"replicate", "shard"}) : w.mesh();
    shard_odd(models[r], mine);
    optimizers[r] = std::make_unique<optim::AdamW>(models[r]->parameters());
    const bool has = !rank0_only || w.rank() == 0;
    fsdp::load_full_state(models[r], *optimizers[r], has ? whole : tessera::LiveState{},
                          rank0_only);
    after[r] = fsdp::state_dict(models[r], *optimizers[r]);
    after[r].before_save();
  });
  const Checkpoint expected = Checkpoint::of({whole}), found = Checkpoint::of(after);
  for (const auto& [name, tensor] : expected.tensors) {
    CAPTURE(name, rank0_only, hybrid);
    REQUIRE(found.tensors.contains(name));
    CHECK(same_bits(found.tensors.at(name), tensor));
  }
  for (const auto& entry : expected.manifest.state.entries)
    if (!entry.value.is_tensor())
      CHECK(found.manifest.state.find(entry.name)->value == entry.value);
}

TEST_CASE("a full state of another model is refused, naming what does not fit") {
  Odd model = make_odd(false), bigger = make_odd(true);
  optim::SGD a(model->parameters(), optim::SGDOptions(1)),
      b(bigger->parameters(), optim::SGDOptions(1));
  CHECK_THROWS_WITH(fsdp::load_full_state(model, a, fsdp::state_dict(bigger, b)),
                    Catch::Contains("\"model.scalar\"") && Catch::Contains("not asked for"));
  CHECK_THROWS_WITH(fsdp::load_full_state(bigger, b, fsdp::state_dict(model, a)),
                    Catch::Contains("\"model.scalar\" is not in the full state"));
}

TEST_CASE("optimizer state is keyed by ids as torch.optim does, and found by FQN again") {
  Odd model = make_odd(false), other = make_odd(false);
  optim::AdamW trained(model->parameters(), optim::AdamWOptions(0.125));
  odd_loss(model, 0, 0, 1).backward();
  trained.step();
  tessera::LiveState by_id = fsdp::state_dict(model, trained);
  fsdp::key_by_ids(by_id);
  CHECK(find_tensor(by_id, "optim.state.1.exp_avg") != nullptr);
  CHECK(find_value(by_id, "optim.param_groups.0.params")->as_list()[2] ==
        tessera::Value::integer(2));
  ScratchFolder folder;
  const auto ranks = tessera::single_rank();
  tessera::save(folder / "by_id", by_id, *ranks);
  optim::AdamW fresh(other->parameters());
  CHECK_THROWS_WITH(tessera::load(folder / "by_id", by_id, *ranks),
                    Catch::Contains("keyed by ids"));
  tessera::load(folder / "by_id", fsdp::state_dict(other, fresh), *ranks);
  const Checkpoint expected = Checkpoint::of({fsdp::state_dict(model, trained)}),
                   found = Checkpoint::of({fsdp::state_dict(other, fresh)});
  for (const auto& [name, tensor] : expected.tensors) {
    CAPTURE(name);
    REQUIRE(found.tensors.contains(name));
    CHECK(same_bits(found.tensors.at(name), tensor));
  }
}

TEST_CASE("ids that may be several parameters are refused where no names stand beside them") {
  // The second layer's group first, as decay by layers makes them: ids 0 and 1 are its parameters.
  const auto make = [] {
    torch::manual_seed(7);
    return torch::nn::Sequential(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
  };
  const auto by_layers = [](torch::nn::Sequential& model) {
    return optim::AdamW(
        std::vector<optim::OptimizerParamGroup>{model[1]->parameters(), model[0]->parameters()});
  };
  torch::nn::Sequential model = make(), other = make();
  optim::AdamW trained = by_layers(model), fresh = by_layers(other);
  model->forward(torch::ones({2, 4})).pow(2).sum().backward();
  trained.step();
  tessera::LiveState by_id = fsdp::state_dict(model, trained);
  fsdp::key_by_ids(by_id);
  ScratchFolder folder;
  const auto ranks = tessera::single_rank();
  tessera::save(folder / "named", by_id, *ranks);
  tessera::load(folder / "named", fsdp::state_dict(other, fresh), *ranks);
  const Checkpoint expected = Checkpoint::of({fsdp::state_dict(model, trained)}),
                   found = Checkpoint::of({fsdp::state_dict(other, fresh)});
  for (const auto& [name, tensor] : expected.tensors) {
    CAPTURE(name);
    CHECK(same_bits(found.tensors.at(name), tensor));
  }
  by_id.remove_if(
      [](const tessera::StateEntry& entry) { return entry.name.ends_with(".param_names"); });
  tessera::save(folder / "bare", by_id, *ranks);
  CHECK_THROWS_WITH(tessera::load(folder / "bare", fsdp::state_dict(other, fresh), *ranks),
                    Catch::Contains("its ids could mean other parameters too"));
}

TEST_CASE("types that do not go together are refused") {
  Odd model = make_odd(false);
  optim::SGD optimizer(model->parameters(), optim::SGDOptions(1));
  StateDictOptions options;
  options.rank0_only = true;
  CHECK_THROWS_WITH(fsdp::state_dict(model, options), Catch::Contains("rank0_only with SHARDED"));
  options = {};
  options.type = StateDictType::kLocal;
  options.even_chunks = true;
  CHECK_THROWS_WITH(fsdp::state_dict(model, options), Catch::Contains("even_chunks with LOCAL"));
  options.even_chunks = false;
  fsdp::Options rows;
  rows.layout = MemoryLayout::kPerParameter;
  shard_odd(model, rows);
  CHECK_THROWS_WITH(fsdp::state_dict(model, options), Catch::Contains("no flat parameter"));
  options = {};
  options.optim_root = "model";
  CHECK_THROWS_WITH(fsdp::state_dict(model, optimizer, options), Catch::Contains("both"));
}

}  // namespace state_full_test
