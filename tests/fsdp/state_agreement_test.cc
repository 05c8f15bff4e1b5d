// What ranks must find alike before they gather together: where one finds something else, or fails,
// every rank is told at once, and the model goes on.
#include <fmt/format.h>
#include <tessera/base/error.h>

#include <chrono>

#include "tests/fsdp/extension_models.h"
#include "tests/fsdp/torch_and_catch.h"

namespace state_agreement_test {

namespace fsdp = tessera::fsdp;
namespace optim = torch::optim;
using namespace tessera::fsdp::test;
using fsdp::MemoryLayout;
using fsdp::StateDictType;
using fsdp::StoredPart;
using tessera::Box;

namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

/// What `call` throws on every rank, which must be soon.
std::string thrown_soon(const std::function<void()>& call) {
  const auto start = std::chrono::steady_clock::now();
  std::string found = error_of(call);
  const auto took = std::chrono::steady_clock::now() - start;
  RANK_CHECK(took < std::chrono::seconds(10), found);
  return found;
}

enum class Answer { kAlike, kTransformed, kThrows, kParts, kChunk };

/// Stores `matrix` as it is; on one rank the answer is another.
struct Odd1 : Defaults {
  Answer answer = Answer::kAlike;
  bool is_transformed(const torch::nn::Module& module, const std::string& name) const override {
    if (answer == Answer::kThrows && name == "matrix") throw std::runtime_error("no answer");
    return Defaults::is_transformed(module, name) && answer != Answer::kTransformed;
  }
  std::vector<StoredPart> post_unflatten(const torch::nn::Module&, const std::string& name,
                                         const at::Tensor& whole) const override {
    return {{name, answer == Answer::kParts ? whole.narrow(0, 0, 4) : whole}};
  }
  Box chunk(const StoredPart& part, int index, int count) const override {
    return Defaults::chunk(part, answer == Answer::kChunk ? count - 1 - index : index, count);
  }
};

/// `matrix` alone, so that no collective comes after it.
struct AloneImpl : torch::nn::Module {
  torch::Tensor matrix = register_parameter("matrix", counted({kRows, kColumns}));
  torch::Tensor forward(torch::Tensor x) { return (matrix * x).sum(); }
};
FSDP_MODULE(Alone);

}  // namespace

TEST_CASE("an extension that answers apart on any rank of a hybrid mesh is refused on all of them",
          "[state][failure]") {
  const int odd = GENERATE(0, 1, 3);
  const auto answer =
      GENERATE(Answer::kTransformed, Answer::kThrows, Answer::kParts, Answer::kChunk);
  const bool full = GENERATE(false, true);
  if (full && answer == Answer::kChunk) return;  // not asked
  CAPTURE(odd, static_cast<int>(answer), full);
  fsdp::run_threads(4, [&](fsdp::World& world) {
    fsdp::Options options;
    options.strategy = fsdp::ShardingStrategy::kHybridShard;
    const fsdp::DeviceMesh mesh(world, {2, 2}, {"replicate", "shard"});
    if (answer == Answer::kChunk) {  // asked without a mesh alone
      options.process_group = mesh.group(1);
      options.replicate_group = mesh.group(0);
    } else {
      options.mesh = mesh;
    }
    const auto extension = std::make_shared<Odd1>();
    options.extension = extension;
    Alone model;
    fully_shard(model, options);
    if (world.rank() == odd) extension->answer = answer;
    fsdp::StateDictOptions asked;
    if (full) asked.type = StateDictType::kFull;
    const std::string message = thrown_soon([&] { fsdp::state_dict(model, asked); });
    RANK_CHECK(!message.empty());
    if (answer == Answer::kThrows) RANK_CHECK(has(message, "no answer"), message);
    if (answer != Answer::kThrows) RANK_CHECK(has(message, "\"matrix\""), message);
    // All were told in words: nothing was aborted.
    extension->answer = Answer::kAlike;
    RANK_CHECK(fsdp::state_dict(model, asked).dict().entries.size() == 1);
  });
}

TEST_CASE("optimizers that differ between ranks are refused before their state is gathered",
          "[state][failure]") {
  const bool rows = GENERATE(false, true);
  const std::string what = GENERATE("no state", "another step", "another shape", "another model");
  CAPTURE(rows, what);
  fsdp::run_threads(3, [&](fsdp::World& world) {
    fsdp::Options options;
    options.mesh = world.mesh();
    Odd model = make_odd(true), other = make_odd(true);
    optim::AdamW stale(other->parameters());
    shard_odd(model, options);
    optim::AdamW optimizer(model->parameters());
    train_odd(model, optimizer, 0, 2, world.rank(), 3);
    const torch::Tensor weight = model->named_parameters()["inner.a.weight"];
    auto& state = optimizer.state();
    const auto adam = [&]() -> optim::AdamWParamState& {
      return static_cast<optim::AdamWParamState&>(*state.at(weight.unsafeGetTensorImpl()));
    };
    auto kept = std::make_unique<optim::AdamWParamState>(adam());
    const bool here = world.rank() == 1;
    if (here && what == "no state") state.erase(weight.unsafeGetTensorImpl());
    if (here && what == "another step") adam().step(7);
    if (here && what == "another shape") adam().exp_avg(torch::zeros({2, 3}));
    fsdp::StateDictOptions asked;
    asked.even_chunks = rows;
    if (!rows) asked.type = StateDictType::kFull;
    optim::Optimizer& given = here && what == "another model" ? stale : optimizer;
    const std::string message = thrown_soon([&] { fsdp::state_dict(model, given, asked); });
    RANK_CHECK(has(message,
                   what == "another model" ? "none of the model's" : "optim.state.inner.a.weight"),
               message);
    if (what == "another step")
      RANK_CHECK(has(message, "step 2") && has(message, "step 7"), message);
    if (what == "no state") RANK_CHECK(has(message, "step 2") && has(message, "no state"), message);
    // And it goes on.
    state[weight.unsafeGetTensorImpl()] = std::move(kept);
    RANK_CHECK(!fsdp::state_dict(model, optimizer, asked).dict().entries.empty());
  });
}

TEST_CASE("ranks that ask for different states are told before any of them gathers",
          "[state][failure]") {
  const std::string what = GENERATE("rank0_only", "root", "no optimizer");
  CAPTURE(what);
  fsdp::run_threads(3, [&](fsdp::World& world) {
    fsdp::Options options;
    options.mesh = world.mesh();
    Odd model = make_odd(true);
    shard_odd(model, options);
    optim::AdamW optimizer(model->parameters());
    fsdp::StateDictOptions common, asked;
    common.type = StateDictType::kFull;
    asked = common;
    const bool here = world.rank() == 1;
    if (here && what == "rank0_only") asked.rank0_only = true;
    if (here && what == "root") asked.optim_root = "optimizer";
    const std::string message = thrown_soon([&] {
      if (here && what == "no optimizer") fsdp::state_dict(model, asked);
      fsdp::state_dict(model, optimizer, asked);
    });
    RANK_CHECK(has(message, "FULL under \"model\" and, of optimizers, \"optim\" on rank"), message);
    RANK_CHECK(has(message, here ? "on rank 0" : "on rank 1"), message);
    if (what == "rank0_only") RANK_CHECK(has(message, "FULL with rank0_only under"), message);
    if (what == "root") RANK_CHECK(has(message, "\"optimizer\" on rank 1"), message);
    if (what == "no optimizer") RANK_CHECK(has(message, "FULL under \"model\" on rank 1"), message);
    RANK_CHECK(!fsdp::state_dict(model, optimizer, common).dict().entries.empty());
  });
}

TEST_CASE("load_full_state with an optimizer of another model on one rank is refused on all") {
  Odd plain = make_odd(true);
  optim::AdamW of_plain(plain->parameters());
  train_odd(plain, of_plain, 0, 1, 0, 1);
  const tessera::LiveState full = fsdp::state_dict(plain, of_plain);
  fsdp::run_threads(3, [&](fsdp::World& world) {
    fsdp::Options options;
    options.mesh = world.mesh();
    Odd model = make_odd(true), other = make_odd(true);
    optim::AdamW stale(other->parameters());
    shard_odd(model, options);
    optim::AdamW optimizer(model->parameters());
    optim::Optimizer& given = world.rank() == 2 ? stale : optimizer;
    const std::string message =
        thrown_soon([&] { fsdp::load_full_state(model, given, full, true); });
    RANK_CHECK(has(message, "none of the model's"), message);
    fsdp::load_full_state(model, optimizer, full, true);
  });
}

}  // namespace state_agreement_test
