// A full state of another model is refused on every rank before any tensor goes to anybody.
#include <tessera/base/error.h>

#include "tests/fsdp/state_support.h"
#include "tests/fsdp/torch_and_catch.h"

namespace state_full_refused_test {

namespace fsdp = tessera::fsdp;
namespace optim = torch::optim;
using namespace tessera::fsdp::test;
using fsdp::MemoryLayout;

namespace {

/// The number of collectives that carried tensors.
std::int64_t sent(const fsdp::Communicator& comm) {
  const fsdp::CommCounts& counts = comm.counts();
  return counts.all_gathers + counts.broadcasts + counts.all_reduces + counts.reduce_scatters;
}

tessera::LiveState whole(Odd& model, optim::Optimizer& optimizer, int steps) {
  for (int step = 0; step < steps; ++step) {
    odd_loss(model, step, 0, 1).backward();
    optimizer.step();
  }
  return fsdp::state_dict(model, optimizer);
}

}  // namespace

TEST_CASE("a full state of other names, nesting or shapes is refused before a tensor is sent") {
  const bool rank0_only = GENERATE(false, true);
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  Odd more = make_odd(true), wider = make_odd(false), plain = make_odd(false);
  wider->inner->a = wider->inner->replace_module("a", torch::nn::Linear(6, 8));
  optim::AdamW of_more(more->parameters()), of_wider(wider->parameters()),
      of_plain(plain->parameters());
  tessera::LiveState deeper = whole(plain, of_plain, 1);
  deeper.edit([](tessera::LiveContents& contents) {
    for (tessera::StateEntry& entry : contents.dict.entries)  // one level further down
      if (entry.name.starts_with("model.inner.")) {
        entry.path[1].key = "wrapped." + entry.path[1].key;
        entry.name = tessera::dotted(entry.path);
      }
  });
  struct Case {
    const char* expected;
    tessera::LiveState state;
  };
  const std::vector<Case> cases = {
      {"\"model.scalar\" of the full state is not asked for", whole(more, of_more, 1)},
      {"\"model.inner.a.weight\": expected float32 [7,6], found float32 [8,6]",
       whole(wider, of_wider, 0)},
      {"\"model.inner.a.weight\" is not in the full state", deeper}};
  fsdp::run_threads(3, [&](fsdp::World& world) {
    fsdp::Options options;
    options.mesh = world.mesh();
    options.layout = layout;
    Odd model = make_odd(false);
    shard_odd(model, options);
    optim::AdamW optimizer(model->parameters());
    train_odd(model, optimizer, 0, 1, world.rank(), 3);
    std::vector<torch::Tensor> before;
    for (const torch::Tensor& parameter : model->parameters())
      before.push_back(parameter.detach().clone());
    const std::int64_t so_far = sent(*world.mesh().group(0));
    for (const Case& each : cases) {
      const bool has = !rank0_only || world.rank() == 0;
      const std::string message = message_of([&] {
        fsdp::load_full_state(model, optimizer, has ? each.state : tessera::LiveState{},
                              rank0_only);
      });
      RANK_CHECK(message.find(each.expected) != std::string::npos, message);
      RANK_CHECK(message.find("rank " + std::to_string(world.rank())) != std::string::npos,
                 message);
    }
    RANK_CHECK(sent(*world.mesh().group(0)) == so_far);
    for (std::size_t p = 0; p < before.size(); ++p)
      RANK_CHECK(same_bits(model->parameters()[p], before[p]));
    train_odd(model, optimizer, 1, 2, world.rank(), 3);  // and it goes on
  });
}

TEST_CASE("a full state of other types, or of values where tensors are, is refused") {
  const bool rank0_only = GENERATE(false, true);
  Odd plain = make_odd(false);
  optim::AdamW of_plain(plain->parameters());
  const tessera::LiveState good = whole(plain, of_plain, 1);
  const auto edited = [&](const std::string& name, const auto& edit) {
    tessera::LiveState state = good;
    state.edit([&](tessera::LiveContents& contents) {
      for (tessera::StateEntry& entry : contents.dict.entries)
        if (entry.name == name) edit(contents, entry);
    });
    return state;
  };
  static std::int64_t numbers[42] = {};
  const auto to_integers = [&](tessera::LiveContents& state, tessera::StateEntry& entry) {
    tessera::LiveTensor& live = state.tensors[entry.value.tensor_index()];
    live.spec.dtype = tessera::DType::kInt64;
    live.pieces[0].data = numbers;
  };
  const auto to_value = [](tessera::LiveContents&, tessera::StateEntry& entry) {
    entry.value = tessera::Value::real(1);
  };
  const auto to_tensor = [&](tessera::LiveContents& state, tessera::StateEntry& entry) {
    entry.value = tessera::Value::tensor(static_cast<std::uint32_t>(state.tensors.size()));
    tessera::LiveTensor live;
    live.spec = {tessera::DType::kInt64, {}};
    live.pieces.push_back({tessera::Chunk::whole_of(tessera::Box::whole({})), numbers, {}});
    state.tensors.push_back(std::move(live));
  };
  struct Case {
    const char* expected;
    tessera::LiveState state;
  };
  const std::vector<Case> cases = {
      {"\"model.inner.a.weight\": expected float32 [7,6], found int64 [7,6]",
       edited("model.inner.a.weight", to_integers)},
      {"\"model.inner.a.weight\": expected float32 [7,6], found a value",
       edited("model.inner.a.weight", to_value)},
      {"\"optim.param_groups.0.eps\": expected a value, found int64 []",
       edited("optim.param_groups.0.eps", to_tensor)}};
  fsdp::run_threads(2, [&](fsdp::World& world) {
    fsdp::Options options;
    options.mesh = world.mesh();
    Odd model = make_odd(false);
    shard_odd(model, options);
    optim::AdamW optimizer(model->parameters());
    for (const Case& each : cases) {
      const bool has = !rank0_only || world.rank() == 0;
      const std::string message = message_of([&] {
        fsdp::load_full_state(model, optimizer, has ? each.state : tessera::LiveState{},
                              rank0_only);
      });
      RANK_CHECK(message.find(each.expected) != std::string::npos, message);
    }
    fsdp::load_full_state(model, optimizer, good);
    // A step may be a plain number, and an integer.
    fsdp::load_full_state(model, optimizer,
                          edited("optim.state.inner.a.bias.step",
                                 [](tessera::LiveContents&, tessera::StateEntry& entry) {
                                   entry.value = tessera::Value::integer(7);
                                 }));
    const auto& state = static_cast<const optim::AdamWParamState&>(
        *optimizer.state().at(model->named_parameters()["inner.a.bias"].unsafeGetTensorImpl()));
    RANK_CHECK(state.step() == 7);
  });
}

TEST_CASE("ranks that are given different full states are refused by name, with both values") {
  Odd plain = make_odd(false);
  optim::AdamW of_plain(plain->parameters(), optim::AdamWOptions(0.5));
  const tessera::LiveState full = whole(plain, of_plain, 1);
  fsdp::run_threads(3, [&](fsdp::World& world) {
    fsdp::Options options;
    options.mesh = world.mesh();
    Odd model = make_odd(false);
    shard_odd(model, options);
    optim::AdamW optimizer(model->parameters());
    const auto message_with = [&](const std::string& name, const tessera::Value& value) {
      tessera::LiveState mine = full;
      mine.edit([&](tessera::LiveContents& contents) {
        for (tessera::StateEntry& entry : contents.dict.entries)
          if (world.rank() == 2 && entry.name == name) entry.value = value;
      });
      return message_of([&] { fsdp::load_full_state(model, optimizer, mine); });
    };
    const std::string rate = message_with("optim.param_groups.0.lr", tessera::Value::real(0.25));
    RANK_CHECK(rate.find("\"optim.param_groups.0.lr\" 0.5 on rank") != std::string::npos &&
                   rate.find("\"optim.param_groups.0.lr\" 0.25 on rank") != std::string::npos,
               rate);
    const std::string step =
        message_with("optim.state.inner.a.bias.step", tessera::Value::integer(9));
    RANK_CHECK(step.find("\"optim.state.inner.a.bias.step\" 9 on rank") != std::string::npos, step);
    fsdp::load_full_state(model, optimizer, full);
  });
}

TEST_CASE("a full state that one rank alone refuses is refused by all, and nothing is loaded") {
  const bool rank0_only = GENERATE(false, true);
  Odd plain = make_odd(false);
  optim::AdamW of_plain(plain->parameters());
  const tessera::LiveState good = whole(plain, of_plain, 1);
  fsdp::run_threads(3, [&](fsdp::World& world) {
    fsdp::Options options;
    options.mesh = world.mesh();
    Odd model = make_odd(false);
    shard_odd(model, options);
    optim::AdamW optimizer(model->parameters());
    std::vector<torch::Tensor> before;
    for (const torch::Tensor& parameter : model->parameters())
      before.push_back(parameter.detach().clone());
    // The last tensor of the state is a part of one on this rank alone; or a name is missing.
    tessera::LiveState bad = good;
    const bool bad_here = world.rank() == (rank0_only ? 0 : 1);
    if (bad_here)
      bad.edit([](tessera::LiveContents& contents) {
        const tessera::StateEntry* last = contents.dict.find("model.history");
        contents.tensors[last->value.tensor_index()].pieces.clear();
      });
    const std::string message =
        message_of([&] { fsdp::load_full_state(model, optimizer, bad, rank0_only); });
    RANK_CHECK(message.find("\"model.history\" is not here") != std::string::npos, message);
    for (std::size_t p = 0; p < before.size(); ++p)
      RANK_CHECK(same_bits(model->parameters()[p], before[p]));
    // And it goes on: no rank waits, none is out of step.
    fsdp::load_full_state(model, optimizer, good, rank0_only);
    const fsdp::SummonFullParams summoned(model);
    for (std::size_t p = 0; p < before.size(); ++p)
      RANK_CHECK(same_bits(model->parameters()[p], plain->parameters()[p]));
  });
}

TEST_CASE("ranks whose optimizers have and have not state yet are given the same full state") {
  Odd plain = make_odd(false);
  optim::AdamW of_plain(plain->parameters());
  const tessera::LiveState full = whole(plain, of_plain, 3);
  fsdp::run_threads(3, [&](fsdp::World& world) {
    fsdp::Options options;
    options.mesh = world.mesh();
    Odd model = make_odd(false);
    shard_odd(model, options);
    optim::AdamW optimizer(model->parameters());
    train_odd(model, optimizer, 0, 1, world.rank(), 3);
    if (world.rank() == 1) optimizer.state().clear();
    const bool has = world.rank() == 0;
    fsdp::load_full_state(model, optimizer, has ? full : tessera::LiveState{}, true);
    fsdp::StateDictOptions of_full;
    of_full.type = fsdp::StateDictType::kFull;
    const tessera::LiveState now = fsdp::state_dict(model, optimizer, of_full);
    int compared = 0;
    for (const tessera::StateEntry& entry : full.dict().entries) {
      if (!entry.value.is_tensor()) continue;
      ++compared;
      RANK_CHECK(same_bits(assembled({now}, entry.name), assembled({full}, entry.name)),
                 entry.name);
    }
    RANK_CHECK(compared > 20);
  });
}

}  // namespace state_full_refused_test
