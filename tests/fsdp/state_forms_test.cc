// What a state dict holds is what its forms say, name by name, in every cell of {no mesh, 1-D, 2-D}
// x {FULL, SHARDED, LOCAL} x {flat, per parameter}; and no padding is among it.
#include <tessera/layout/layout.h>

#include "fsdp_core/runtime/units_of.h"
#include "tests/fsdp/state_support.h"
#include "tests/fsdp/torch_and_catch.h"

namespace state_forms_test {

namespace fsdp = tessera::fsdp;
using namespace tessera::fsdp::test;
using fsdp::MemoryLayout;
using fsdp::StateDictType;
using fsdp::ValueKind;
using tessera::Placement;

namespace {

constexpr int kRanks = 4;

fsdp::Options options_of(int dims, MemoryLayout layout, fsdp::World& world) {
  fsdp::Options options;
  options.layout = layout;
  if (dims == 0) options.process_group = world.communicator();
  if (dims == 1) options.mesh = world.mesh();
  if (dims == 2) {
    options.mesh = fsdp::DeviceMesh(world, {2, 2}, {"r", "s"});
    options.strategy = fsdp::ShardingStrategy::kHybridShard;
  }
  return options;
}

bool is_flat(const fsdp::ValueForm& form, StateDictType type, MemoryLayout layout, bool even) {
  if (form.kind == ValueKind::kDTensor)
    return std::ranges::find(form.placements, Placement::flat()) != form.placements.end();
  return form.kind == ValueKind::kShardedTensor && type == StateDictType::kSharded &&
         layout == MemoryLayout::kFlat && !even;
}

/// The chunks of `shape` that this rank holds by the form alone; not of flat ones.
std::vector<tessera::Chunk> chunks_by(const fsdp::ValueForm& form, const tessera::Shape& shape,
                                      int rank) {
  if (form.kind == ValueKind::kPlain) return {tessera::Chunk::whole_of(tessera::Box::whole(shape))};
  if (form.kind == ValueKind::kDTensor)
    return tessera::Layout(form.mesh, form.placements).chunks_of(rank, shape);
  return tessera::Layout(tessera::Mesh({{"ranks", kRanks}}), {Placement::shard(0)})
      .chunks_of(rank, shape);
}

void drop_empty(std::vector<tessera::Chunk>& chunks) {
  std::erase_if(chunks, [](const tessera::Chunk& chunk) { return chunk.numel() == 0; });
}

bool says_replicated(const fsdp::ValueForm& form) {
  if (form.kind != ValueKind::kDTensor) return form.kind == ValueKind::kPlain;
  for (std::size_t d = 0; d < form.placements.size(); ++d)
    if (form.placements[d] == Placement::replicate() && form.mesh.dims()[d].size > 1) return true;
  return false;
}

void check_value(const fsdp::ValueForm& form, const tessera::LiveTensor& held, bool flat,
                 int rank) {
  RANK_CHECK(held.replicated == says_replicated(form), form.fqn);
  std::vector<tessera::Chunk> found;
  for (const tessera::LivePiece& piece : held.pieces) found.push_back(piece.chunk);
  drop_empty(found);
  if (flat) {  // one range of the parameter's ravel, cut by the unit's flat buffer
    RANK_CHECK(found.size() <= 1, form.fqn);
    if (!found.empty()) RANK_CHECK(found[0].box == tessera::Box::whole(held.spec.shape), form.fqn);
    return;
  }
  std::vector<tessera::Chunk> expected = chunks_by(form, held.spec.shape, rank);
  drop_empty(expected);
  RANK_CHECK(found == expected, form.fqn);
}

}  // namespace

TEST_CASE("the values of a state dict are named and cut as their forms say") {
  const int dims = GENERATE(0, 1, 2);
  const auto type = GENERATE(StateDictType::kSharded, StateDictType::kFull, StateDictType::kLocal);
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  const bool even = GENERATE(false, true);
  if (even && type != StateDictType::kSharded) return;
  if (type == StateDictType::kLocal && (dims > 0 || layout != MemoryLayout::kFlat)) return;
  CAPTURE(dims, fsdp::state_dict_type_name(type), layout == MemoryLayout::kFlat, even);
  fsdp::run_threads(kRanks, [&](fsdp::World& world) {
    Odd model = make_odd(false);
    shard_odd(model, options_of(dims, layout, world));
    fsdp::StateDictOptions wanted;
    wanted.type = type;
    wanted.even_chunks = even;
    const tessera::LiveState state = fsdp::state_dict(model, wanted);
    std::vector<std::string> names;
    for (const fsdp::ValueForm& form : fsdp::value_forms(model, wanted)) {
      names.push_back("model." + form.fqn);
      const tessera::LiveTensor* held = find_tensor(state, names.back());
      RANK_CHECK(held != nullptr, form.fqn);
      check_value(form, *held, is_flat(form, type, layout, even), world.rank());
    }
    RANK_CHECK(names == names_of(state));
  });
}

TEST_CASE("padding is known of each shard and is no part of its state") {
  const int ranks = GENERATE(1, 2, 3, 4, 8);
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  const auto type = GENERATE(StateDictType::kSharded, StateDictType::kLocal);
  if (type == StateDictType::kLocal && layout != MemoryLayout::kFlat) return;
  CAPTURE(ranks, layout == MemoryLayout::kFlat);
  std::atomic<std::int64_t> padded = 0, held = 0;
  fsdp::run_threads(ranks, [&](fsdp::World& world) {
    Odd model = make_odd(false);
    shard_odd(model, options_of(0, layout, world));
    torch::optim::AdamW optimizer(once_each(model->parameters()));
    train_odd(model, optimizer, 0, 1, world.rank(), ranks);
    std::int64_t unpadded = 0;
    for (const auto& [fqn, unit] : fsdp::named_units(*model))
      for (const auto& group : unit->groups()) {
        unpadded += group->layout().shard_numel() - group->layout().num_padded();
        padded += group->layout().num_padded();
      }
    fsdp::StateDictOptions wanted;
    wanted.type = type;
    const tessera::LiveState state = fsdp::state_dict(model, optimizer, wanted);
    std::int64_t parameters = 0, moments = 0;
    for (const tessera::StateEntry& entry : state.dict().entries) {
      if (!entry.value.is_tensor()) continue;
      const tessera::LiveTensor& tensor = state.tensors()[entry.value.tensor_index()];
      std::int64_t numel = 0;
      for (const tessera::LivePiece& piece : tensor.pieces) numel += piece.chunk.numel();
      if (tensor.is_parameter && entry.name != "model.head.weight2") parameters += numel;
      if (entry.name.ends_with(".exp_avg")) moments += numel;
    }
    RANK_CHECK(parameters == unpadded);
    RANK_CHECK(moments == unpadded);
    held += parameters;
  });
  std::int64_t numel = 0;
  for (const torch::Tensor& parameter : once_each(make_odd(false)->parameters()))
    numel += parameter.numel();
  CHECK(held == numel);
  if (ranks > 1) CHECK(padded > 0);  // no number of ranks divides them
}

}  // namespace state_forms_test
