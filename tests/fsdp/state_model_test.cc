#include <tessera/base/error.h>

#include "fsdp_core/bridge/dtype.h"
#include "tests/fsdp/state_support.h"
#include "tests/fsdp/torch_and_catch.h"

namespace state_model_test {

namespace fsdp = tessera::fsdp;
using namespace tessera::fsdp::test;
using fsdp::MemoryLayout;
using fsdp::ShardingStrategy;

namespace {

/// Live states of all ranks beside each other; the models that own their memory stay.
struct Ranks {
  std::vector<tessera::LiveState> states;
  std::vector<Odd> models;
};

Ranks states_of(int world, const fsdp::Options& base, bool two_dim) {
  Ranks out;
  const bool scalar = base.layout == MemoryLayout::kFlat;
  for (int r = 0; r < world; ++r) out.models.push_back(make_odd(scalar));
  out.states.resize(static_cast<std::size_t>(world));
  fsdp::run_threads(world, [&](fsdp::World& w) {
    fsdp::Options options = base;
    options.mesh = two_dim ? fsdp::DeviceMesh(w, {2, world / 2}, {"replicate", "shard"}) : w.mesh();
    const auto r = static_cast<std::size_t>(w.rank());
    shard_odd(out.models[r], options);
    out.states[r] = fsdp::state_dict(out.models[r]);
  });
  return out;
}

}  // namespace

TEST_CASE("a sharded state dict holds every element of every parameter once") {
  const int world = GENERATE(1, 2, 3, 4, 8);
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  fsdp::Options options;
  options.layout = layout;
  const Ranks ranks = states_of(world, options, false);
  const Odd plain = make_odd(layout == MemoryLayout::kFlat);
  CAPTURE(world);
  for (const auto& item : plain->named_parameters())
    CHECK(same_bits(assembled(ranks.states, "model." + item.key()), item.value()));
  for (const auto& item : plain->named_buffers())
    CHECK(same_bits(assembled(ranks.states, "model." + item.key()), item.value()));
}

TEST_CASE("with replicas each of them holds equal pieces") {
  const auto strategy = GENERATE(ShardingStrategy::kHybridShard, ShardingStrategy::kNoShard,
                                 ShardingStrategy::kHybridShardZero2);
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  fsdp::Options options;
  options.strategy = strategy;
  options.layout = layout;
  const Ranks ranks = states_of(4, options, strategy != ShardingStrategy::kNoShard);
  const Odd plain = make_odd(layout == MemoryLayout::kFlat);
  for (const auto& item : plain->named_parameters()) {
    const std::string name = "model." + item.key();
    CHECK(find_tensor(ranks.states[0], name)->replicated);
    CHECK(same_bits(assembled(ranks.states, name), item.value()));
    const std::vector<tessera::LiveState> one_replica = {ranks.states[2], ranks.states[3]};
    CHECK(same_bits(assembled(one_replica, name), item.value()));
  }
}

TEST_CASE("a sharded state dict moves no tensor data") {
  fsdp::Options options;
  options.layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  const Ranks ranks = states_of(3, options, false);
  for (std::size_t r = 0; r < 3; ++r)
    for (const auto& item : ranks.models[r]->named_parameters()) {
      const tessera::LiveTensor* tensor = find_tensor(ranks.states[r], "model." + item.key());
      REQUIRE(tensor != nullptr);
      for (const tessera::LivePiece& piece : tensor->pieces)
        if (piece.chunk.numel() > 0) CHECK(piece.data == item.value().data_ptr());
    }
}

TEST_CASE("names are the plain module's, in its order, and tied parameters stand under each") {
  const Odd plain = make_odd(true);
  const std::vector<std::string> expected = {
      "model.scalar",       "model.empty",          "model.tokens",       "model.history",
      "model.embed.weight", "model.inner.a.weight", "model.inner.a.bias", "model.inner.b.weight",
      "model.inner.b.bias", "model.head.weight",    "model.head.weight2"};
  CHECK(names_of(fsdp::state_dict(plain)) == expected);
  const Ranks ranks = states_of(2, {}, false);
  CHECK(names_of(ranks.states[1]) == expected);
  CHECK(same_bits(assembled(ranks.states, "model.head.weight2"), plain->embed->weight));
}

TEST_CASE("kind and placements of a value follow from mesh, type, strategy and layout") {
  struct Row {
    int dims;  // 0: a process group
    fsdp::StateDictType type;
    MemoryLayout layout;
    ShardingStrategy strategy;
    std::string expected;
    bool even = false;
  };
  using fsdp::StateDictType;
  constexpr auto kFlat = MemoryLayout::kFlat, kRows = MemoryLayout::kPerParameter;
  constexpr auto kFull = ShardingStrategy::kFullShard, kHybrid = ShardingStrategy::kHybridShard;
  const std::vector<Row> rows = {
      {0, StateDictType::kFull, kFlat, kFull, "tensor"},
      {0, StateDictType::kFull, kRows, kFull, "tensor"},
      {0, StateDictType::kSharded, kFlat, kFull, "ShardedTensor"},
      {0, StateDictType::kSharded, kRows, kFull, "ShardedTensor"},
      {0, StateDictType::kSharded, kFlat, ShardingStrategy::kNoShard, "tensor"},
      {0, StateDictType::kLocal, kFlat, kFull, "ShardedTensor"},
      {0, StateDictType::kLocal, kRows, kFull, "LOCAL of unit"},
      {1, StateDictType::kFull, kFlat, kFull, "tensor"},
      {1, StateDictType::kFull, kRows, kFull, "tensor"},
      {1, StateDictType::kSharded, kFlat, kFull, "DTensor shard=4 flat"},
      {1, StateDictType::kSharded, kRows, kFull, "DTensor shard=4 shard(0)"},
      {1, StateDictType::kSharded, kFlat, ShardingStrategy::kShardGradOp, "DTensor shard=4 flat"},
      {1, StateDictType::kSharded, kFlat, ShardingStrategy::kNoShard, "DTensor shard=4 replicate"},
      {1, StateDictType::kLocal, kFlat, kFull, "LOCAL with a mesh"},
      {1, StateDictType::kLocal, kRows, kFull, "LOCAL with a mesh"},
      {2, StateDictType::kFull, kFlat, kHybrid, "tensor"},
      {2, StateDictType::kFull, kRows, kHybrid, "tensor"},
      {2, StateDictType::kSharded, kFlat, kHybrid, "DTensor r=2,s=2 replicate flat"},
      {2, StateDictType::kSharded, kRows, kHybrid, "DTensor r=2,s=2 replicate shard(0)"},
      {2, StateDictType::kSharded, kRows, ShardingStrategy::kHybridShardZero2,
       "DTensor r=2,s=2 replicate shard(0)"},
      {2, StateDictType::kSharded, kFlat, kFull, "DTensor r=2,s=2 flat replicate"},
      {2, StateDictType::kLocal, kFlat, kHybrid, "LOCAL with a mesh"},
      {2, StateDictType::kLocal, kRows, kHybrid, "LOCAL with a mesh"},
      {0, StateDictType::kSharded, kFlat, kFull, "ShardedTensor", true},
      {0, StateDictType::kSharded, kRows, kFull, "ShardedTensor", true},
      {1, StateDictType::kSharded, kFlat, kFull, "DTensor shard=4 shard(0)", true},
      {1, StateDictType::kSharded, kRows, kFull, "DTensor shard=4 shard(0)", true},
      {1, StateDictType::kSharded, kFlat, ShardingStrategy::kNoShard, "DTensor shard=4 replicate",
       true},
      {2, StateDictType::kSharded, kFlat, kHybrid, "DTensor r=2,s=2 replicate shard(0)", true},
      {2, StateDictType::kSharded, kRows, kHybrid, "DTensor r=2,s=2 replicate shard(0)", true},
      {2, StateDictType::kSharded, kFlat, kFull, "DTensor r=2,s=2 shard(0) replicate", true},
      {1, StateDictType::kFull, kFlat, kFull, "even_chunks with FULL", true},
      {0, StateDictType::kLocal, kFlat, kFull, "even_chunks with LOCAL", true},
  };
  for (const Row& row : rows) {
    const std::string label = row.expected + " at " + std::to_string(row.dims);
    fsdp::run_threads(4, [&](fsdp::World& world) {
      fsdp::Options options;
      options.layout = row.layout;
      options.strategy = row.strategy;
      if (row.dims == 0) options.process_group = world.communicator();
      if (row.dims == 1) options.mesh = world.mesh();
      if (row.dims == 2) options.mesh = fsdp::DeviceMesh(world, {2, 2}, {"r", "s"});
      Odd model = make_odd(false);
      shard_odd(model, options);
      fsdp::StateDictOptions wanted;
      wanted.type = row.type;
      wanted.even_chunks = row.even;
      std::string found;
      const std::string error = message_of([&] {
        for (const fsdp::ValueForm& form : fsdp::value_forms(model, wanted)) {
          if (form.fqn == "history") RANK_CHECK(form.kind == fsdp::ValueKind::kPlain);
          if (form.fqn !=
              (row.type == StateDictType::kLocal ? "inner._flat_param" : "inner.a.weight"))
            continue;
          found = fsdp::value_kind_name(form.kind);
          if (form.kind == fsdp::ValueKind::kDTensor) found += " " + form.mesh.to_string();
          for (const tessera::Placement& placement : form.placements)
            found += " " + placement.to_string();
        }
      });
      if (row.expected.starts_with("LOCAL") || row.expected.starts_with("even"))
        RANK_CHECK(error.find(row.expected) != std::string::npos, error);
      else
        RANK_CHECK(found == row.expected, label + ": " + found + error);
    });
  }
}

TEST_CASE("buffers that a unit holds in another precision are saved in their own") {
  fsdp::run_threads(2, [&](fsdp::World& world) {
    fsdp::Options options;
    options.mesh = world.mesh();
    options.mixed_precision.buffer_dtype = torch::kBFloat16;
    Odd model = make_odd(true);
    shard_odd(model, options);
    odd_loss(model, 0, world.rank(), 2).backward();
    RANK_CHECK(model->history.scalar_type() == torch::kBFloat16);
    const tessera::LiveState state = fsdp::state_dict(model);
    RANK_CHECK(find_tensor(state, "model.history")->spec.dtype == tessera::DType::kFloat32);
    RANK_CHECK(find_tensor(state, "model.tokens")->spec.dtype == tessera::DType::kInt64);
  });
}

TEST_CASE("a state dict inside a forward is refused, naming the unit") {
  Odd model = make_odd(true);
  shard_odd(model, {});
  fsdp::SummonFullParams summoned(model);
  CHECK_THROWS_WITH(fsdp::state_dict(model),
                    Catch::Contains("state_dict inside") && Catch::Contains("unit \"inner\""));
}

TEST_CASE("every element type of LibTorch has one of ours, both ways") {
  for (const at::ScalarType type :
       {at::kBool, at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kHalf, at::kBFloat16,
        at::kFloat, at::kDouble, at::kComplexFloat, at::kComplexDouble, at::kFloat8_e4m3fn,
        at::kFloat8_e5m2, at::kUInt16, at::kUInt32, at::kUInt64}) {
    CHECK(fsdp::scalar_type_of(fsdp::dtype_of(type)) == type);
    CHECK(tessera::element_bytes(fsdp::dtype_of(type)) == static_cast<int>(c10::elementSize(type)));
  }
  CHECK_THROWS_WITH(fsdp::dtype_of(at::ScalarType::QInt8), Catch::Contains("QInt8"));
  CHECK_THROWS_WITH(fsdp::scalar_type_of(tessera::DType::kFloat6E2M3),
                    Catch::Contains("float6_e2m3") || Catch::Contains("f6_e2m3"));
}

}  // namespace state_model_test
