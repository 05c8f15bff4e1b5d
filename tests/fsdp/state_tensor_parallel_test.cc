// State dicts of FSDP x TP, with replicas and without: what is saved on one mesh is loaded on any
// other, or on none, as the whole tensors it is made of.
#include "tests/fsdp/state_support.h"
#include "tests/fsdp/tensor_parallel_models.h"
#include "tests/fsdp/torch_and_catch.h"

namespace state_tensor_parallel_test {

using namespace tessera::fsdp;
using namespace tessera::fsdp::test;

namespace {

struct Shape {
  int data, tensor;
  MemoryLayout layout;
  int replicas = 0;  // 0: a mesh of two dims

  int ranks() const { return std::max(replicas, 1) * data * tensor; }
  DeviceMesh mesh(World& world) const {
    if (replicas == 0) return {world, {data, tensor}, {"data", "tensor"}};
    return {world, {replicas, data, tensor}, {"replicate", "data", "tensor"}};
  }
};

torch::Tensor loss_of(const torch::Tensor& out) { return (out * out).mean(); }

struct Steps {
  int first, end;
};

/// Trains, after loading from `from`, before saving to `to`; the state at the end.
Checkpoint run(const Shape& shape, Steps steps, const std::string& from, const std::string& to,
               StateDictType type = StateDictType::kSharded, bool rank0_only = false) {
  const int ranks = shape.ranks();
  std::vector<CutStack> models(static_cast<std::size_t>(ranks), nullptr);
  std::vector<std::unique_ptr<torch::optim::AdamW>> optimizers(models.size());
  std::vector<tessera::LiveState> states(models.size());
  run_threads(ranks, [&](World& world) {
    const auto r = static_cast<std::size_t>(world.rank());
    const DeviceMesh mesh = shape.mesh(world);
    models[r] = make_cut_stack(mesh.sub(mesh.ndim() - 1));
    shard_cut(models[r], mesh, shape.layout);
    optimizers[r] = std::make_unique<torch::optim::AdamW>(models[r]->parameters(), 1e-2);
    StateDictOptions options;
    options.type = type;
    options.rank0_only = rank0_only;
    if (!from.empty()) {
      {
        const torch::NoGradGuard no_grad;
        for (torch::Tensor& parameter : models[r]->parameters()) parameter.fill_(-7);
      }
      const tessera::LoadResult result =
          tessera::load(from, state_dict(models[r], *optimizers[r], options), world.ranks());
      RANK_CHECK(result.missing.empty() && result.unexpected.empty() && result.mismatched.empty());
    }
    const torch::Tensor x = torch::arange(12 * kWidth).to(torch::kFloat).view({12, kWidth}) / 50;
    for (int step = steps.first; step < steps.end; ++step) {
      optimizers[r]->zero_grad();
      loss_of(models[r]->forward(x + step)).backward();
      optimizers[r]->step();
    }
    if (!to.empty())
      tessera::save(to, state_dict(models[r], *optimizers[r], options), world.ranks());
    states[r] = state_dict(models[r], *optimizers[r]);
    states[r].before_save();
  });
  return Checkpoint::of(states);
}

/// How a state is asked for.
struct Form {
  StateDictType type;
  bool rank0_only;
};

void check_same(const Checkpoint& found, const Checkpoint& expected) {
  REQUIRE(found.tensors.size() == expected.tensors.size());
  for (const auto& [name, tensor] : expected.tensors) {
    CAPTURE(name);
    REQUIRE(found.tensors.contains(name));
    CHECK(torch::equal(found.tensors.at(name), tensor));
  }
}

}  // namespace

TEST_CASE("a full state of the plain model is scattered over data and tensor ranks") {
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  const Shape shape = GENERATE_COPY(Shape{2, 2, layout}, Shape{3, 2, layout}, Shape{2, 4, layout},
                                    Shape{2, 2, layout, 2});
  CAPTURE(shape.data, shape.tensor, shape.replicas, layout);
  PlainStack plain = make_plain_stack();
  torch::optim::AdamW of_plain(plain->parameters(), 1e-2);
  const torch::Tensor x = torch::arange(12 * kWidth).to(torch::kFloat).view({12, kWidth}) / 50;
  loss_of(plain->forward(x)).backward();
  of_plain.step();
  const tessera::LiveState full = state_dict(plain, of_plain);
  std::vector<CutStack> models(static_cast<std::size_t>(shape.ranks()), nullptr);
  std::vector<std::unique_ptr<torch::optim::AdamW>> optimizers(models.size());
  std::vector<tessera::LiveState> states(models.size());
  run_threads(shape.ranks(), [&](World& world) {
    const auto r = static_cast<std::size_t>(world.rank());
    const DeviceMesh mesh = shape.mesh(world);
    models[r] = make_cut_stack(mesh.sub(mesh.ndim() - 1));
    shard_cut(models[r], mesh, shape.layout);
    optimizers[r] = std::make_unique<torch::optim::AdamW>(models[r]->parameters(), 1e-2);
    {
      const torch::NoGradGuard no_grad;
      for (torch::Tensor& parameter : models[r]->parameters()) parameter.fill_(-7);
    }
    load_full_state(models[r], *optimizers[r], full);
    states[r] = state_dict(models[r], *optimizers[r]);
    states[r].before_save();
  });
  check_same(Checkpoint::of(states), Checkpoint::of({full}));
}

TEST_CASE("a checkpoint of FSDP x TP is loaded on any other mesh") {
  const ScratchFolder scratch;
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  const auto [type, rank0_only] =
      GENERATE(Form{StateDictType::kSharded, false}, Form{StateDictType::kFull, false},
               Form{StateDictType::kFull, true});
  CAPTURE(type, rank0_only);
  const Checkpoint saved = run({2, 2, layout}, {0, 3}, "", scratch / "a", type, rank0_only);
  CHECK(saved.tensors.at("model.b0.up.weight").sizes() == at::IntArrayRef({kHidden, kWidth}));
  CHECK(saved.tensors.at("model.b1.down.weight").sizes() == at::IntArrayRef({kWidth, kHidden}));
  CHECK(saved.tensors.at("optim.state.b1.down.weight.exp_avg").sizes() ==
        at::IntArrayRef({kWidth, kHidden}));
  for (const Shape& shape : {Shape{1, 1, MemoryLayout::kFlat}, Shape{3, 1, layout},
                             Shape{1, 4, MemoryLayout::kPerParameter},
                             Shape{3, 2, MemoryLayout::kFlat}, Shape{1, 8, layout}}) {
    CAPTURE(shape.data, shape.tensor);
    check_same(run(shape, {0, 0}, scratch / "a", "", type, rank0_only), saved);
  }
}

TEST_CASE("training on the same FSDP x TP mesh goes on bit for bit") {
  const ScratchFolder scratch;
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  run({2, 2, layout}, {0, 2}, "", scratch / "middle");
  check_same(run({2, 2, layout}, {2, 4}, scratch / "middle", ""),
             run({2, 2, layout}, {0, 4}, "", ""));
}

TEST_CASE("a checkpoint of HSDP x TP is loaded on any other mesh, and any other's on it") {
  const ScratchFolder scratch;
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  const auto [type, rank0_only] =
      GENERATE(Form{StateDictType::kSharded, false}, Form{StateDictType::kFull, false},
               Form{StateDictType::kFull, true});
  const Shape hybrid{2, 2, layout, 2};
  const Checkpoint saved = run(hybrid, {0, 3}, "", scratch / "a", type, rank0_only);
  // Neither parts nor copies: one whole tensor of each, whoever held it.
  CHECK(saved.tensors.at("model.b0.up.weight").sizes() == at::IntArrayRef({kHidden, kWidth}));
  CHECK(saved.tensors.at("optim.state.b1.down.weight.exp_avg").sizes() ==
        at::IntArrayRef({kWidth, kHidden}));
  const auto other =
      layout == MemoryLayout::kFlat ? MemoryLayout::kPerParameter : MemoryLayout::kFlat;
  for (const Shape& shape :
       {Shape{1, 1, layout}, Shape{3, 2, other}, Shape{1, 2, layout, 3}, Shape{2, 1, other, 2}})
    check_same(run(shape, {0, 0}, scratch / "a", "", type, rank0_only), saved);
  const Checkpoint flat_mesh = run({2, 2, other}, {0, 2}, "", scratch / "b", type, rank0_only);
  check_same(run(hybrid, {0, 0}, scratch / "b", "", type, rank0_only), flat_mesh);
}

TEST_CASE("training on the same HSDP x TP mesh goes on bit for bit") {
  const ScratchFolder scratch;
  const Shape shape{2, 2, GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter), 2};
  run(shape, {0, 2}, "", scratch / "middle");
  check_same(run(shape, {2, 4}, scratch / "middle", ""), run(shape, {0, 4}, "", ""));
}

TEST_CASE("a plain module loads what FSDP x TP saved") {
  const ScratchFolder scratch;
  const int replicas = GENERATE(0, 2);
  const Checkpoint saved = run({2, 2, MemoryLayout::kFlat, replicas}, {0, 2}, "", scratch / "a");
  PlainStack plain = make_plain_stack();
  const std::unique_ptr<tessera::RankGroup> alone = tessera::single_rank();
  const tessera::LoadResult result = tessera::load(scratch / "a", state_dict(plain), *alone);
  CHECK(result.missing.empty());
  for (const auto& parameter : plain->named_parameters())
    CHECK(torch::equal(parameter.value(), saved.tensors.at("model." + parameter.key())));
}

TEST_CASE("forms of FSDP x TP values name every dim of the mesh") {
  using tessera::Placement;
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  const int replicas = GENERATE(0, 2);
  const bool rows = layout == MemoryLayout::kPerParameter;
  const Shape shape{2, 2, layout, replicas};
  run_threads(shape.ranks(), [&](World& world) {
    const DeviceMesh mesh = shape.mesh(world);
    CutStack net = make_cut_stack(mesh.sub(mesh.ndim() - 1));
    shard_cut(net, mesh, layout);
    std::map<std::string, std::vector<Placement>> expected = {
        {"b0.up.weight",
         {rows ? Placement::strided_shard(0, 2) : Placement::flat(), Placement::shard(0)}},
        {"b0.down.weight", {rows ? Placement::shard(0) : Placement::flat(), Placement::shard(1)}},
        {"b0.down.bias", {rows ? Placement::shard(0) : Placement::flat(), Placement::replicate()}}};
    if (replicas > 0)
      for (auto& [fqn, placements] : expected)
        placements.insert(placements.begin(), Placement::replicate());
    std::size_t found = 0;
    for (const ValueForm& form : value_forms(net)) {
      const auto at = expected.find(form.fqn);
      if (at == expected.end()) continue;
      ++found;
      RANK_CHECK(form.kind == ValueKind::kDTensor, form.fqn);
      RANK_CHECK(form.placements == at->second, form.fqn);
      RANK_CHECK(form.mesh.rank() == mesh.ndim(), form.fqn);
    }
    RANK_CHECK(found == expected.size());
    StateDictOptions local;
    local.type = StateDictType::kLocal;
    RANK_CHECK(message_of([&] { state_dict(net, local); }).find("parts of larger tensors") !=
               std::string::npos);
  });
}

}  // namespace state_tensor_parallel_test
