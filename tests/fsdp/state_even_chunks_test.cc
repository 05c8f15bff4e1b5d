// even_chunks: values of flat units as equal rows, as Shard(0) means them, in copies that are made
// by a gather and scattered back by a load.
#include <tessera/storage/memory_file_system.h>

#include "tests/fsdp/state_support.h"
#include "tests/fsdp/tensor_parallel_models.h"
#include "tests/fsdp/torch_and_catch.h"

namespace state_even_chunks_test {

namespace fsdp = tessera::fsdp;
namespace optim = torch::optim;
using namespace tessera::fsdp::test;
using fsdp::MemoryLayout;
using fsdp::ShardingStrategy;

namespace {

fsdp::StateDictOptions evenly(bool even = true) {
  fsdp::StateDictOptions options;
  options.even_chunks = even;
  return options;
}

struct Setup {
  int world;
  MemoryLayout layout = MemoryLayout::kFlat;
  bool hybrid = false;
};

fsdp::Options options_of(const Setup& setup, fsdp::World& world) {
  fsdp::Options options;
  options.layout = setup.layout;
  if (setup.hybrid) options.strategy = ShardingStrategy::kHybridShard;
  options.mesh = setup.hybrid
                     ? fsdp::DeviceMesh(world, {2, setup.world / 2}, {"replicate", "shard"})
                     : world.mesh();
  return options;
}

/// A run's ranks: model, optimizer, the state asked for and the plain sharded one.
struct Ranks {
  std::vector<Odd> models;
  std::vector<std::unique_ptr<optim::AdamW>> optimizers;
  std::vector<tessera::LiveState> rows, shards;
};

void fill_wrong(Odd& model) {
  const torch::NoGradGuard no_grad;
  for (torch::Tensor& parameter : model->parameters()) parameter.fill_(-7);
}

/// Trains two steps, or loads from `from`; then saves to `to`.
Ranks run(const Setup& setup, bool even, const std::string& from, const std::string& to) {
  Ranks out;
  const auto world = static_cast<std::size_t>(setup.world);
  for (std::size_t r = 0; r < world; ++r) out.models.push_back(make_odd(false));
  out.optimizers.resize(world);
  out.rows.resize(world);
  out.shards.resize(world);
  fsdp::run_threads(setup.world, [&](fsdp::World& w) {
    const auto r = static_cast<std::size_t>(w.rank());
    Odd& model = out.models[r];
    shard_odd(model, options_of(setup, w));
    out.optimizers[r] = std::make_unique<optim::AdamW>(model->parameters());
    optim::AdamW& optimizer = *out.optimizers[r];
    if (from.empty()) {
      for (int step = 0; step < 2; ++step) {
        optimizer.zero_grad();
        odd_loss(model, step, w.rank(), setup.world).backward();
        optimizer.step();
      }
    } else {
      fill_wrong(model);
      const tessera::LoadResult result =
          tessera::load(from, fsdp::state_dict(model, optimizer, evenly(even)), w.ranks());
      RANK_CHECK(result.missing.empty() && result.unexpected.empty());
    }
    out.rows[r] = fsdp::state_dict(model, optimizer, evenly(even));
    out.rows[r].before_save();
    if (!to.empty()) tessera::save(to, out.rows[r], w.ranks());
    out.shards[r] = fsdp::state_dict(model, optimizer);
    out.shards[r].before_save();
  });
  return out;
}

}  // namespace

TEST_CASE("even chunks are the rows that torch.chunk gives and hold every element") {
  const Setup setup =
      GENERATE(Setup{1}, Setup{2}, Setup{3}, Setup{8}, Setup{4, MemoryLayout::kFlat, true},
               Setup{3, MemoryLayout::kPerParameter});
  const Ranks ranks = run(setup, true, "", "");
  CAPTURE(setup.world, setup.hybrid);
  for (const auto& entry : ranks.shards[0].dict().entries) {
    if (!entry.value.is_tensor()) continue;
    CAPTURE(entry.name);
    const torch::Tensor whole = assembled(ranks.shards, entry.name);
    CHECK(same_bits(assembled(ranks.rows, entry.name), whole));
    if (whole.dim() == 0 || entry.name == "model.history") continue;
    const int shards = setup.hybrid ? setup.world / 2 : setup.world;
    const std::vector<torch::Tensor> chunks = torch::chunk(whole, shards);
    for (int r = 0; r < setup.world; ++r) {
      const auto chunk = static_cast<std::size_t>(r % shards);
      const std::int64_t expected = chunk < chunks.size() ? chunks[chunk].numel() : 0;
      std::int64_t held = 0;
      for (const auto& piece :
           find_tensor(ranks.rows[static_cast<std::size_t>(r)], entry.name)->pieces) {
        held += piece.chunk.numel();
        CHECK(piece.chunk.is_whole_box());
      }
      CHECK(held == expected);
    }
  }
}

TEST_CASE("even chunks are saved and loaded and so are shards from them and back") {
  const Setup from = GENERATE(Setup{3}, Setup{4, MemoryLayout::kFlat, true});
  const ScratchFolder folder;
  const Ranks saved = run(from, true, "", folder / "rows");
  const Checkpoint expected = Checkpoint::of(saved.shards);
  for (const Setup& to : {Setup{2}, Setup{8}, Setup{4, MemoryLayout::kFlat, true}, Setup{1}})
    for (const bool even : {true, false}) {
      CAPTURE(to.world, even);
      const Ranks loaded = run(to, even, folder / "rows", "");
      const Checkpoint found = Checkpoint::of(loaded.shards);
      REQUIRE(found.tensors.size() == expected.tensors.size());
      for (const auto& [name, tensor] : expected.tensors) {
        CAPTURE(name);
        CHECK(same_bits(found.tensors.at(name), tensor));
      }
    }
}

TEST_CASE("even chunks gather and plain shards do not") {
  tessera::MemoryFileSystem fs;
  fsdp::run_threads(2, [&](fsdp::World& world) {
    fsdp::Options options;
    options.mesh = world.mesh();
    Odd model = make_odd(true);
    shard_odd(model, options);
    const auto gathers = [&](bool even) {
      fsdp::Communicator& comm = *world.mesh().group(0);
      const auto before = comm.counts().all_gathers;
      fsdp::state_dict(model, evenly(even));
      return comm.counts().all_gathers - before;
    };
    RANK_CHECK(gathers(false) == 0);
    RANK_CHECK(gathers(true) > 0);
    // Nor does saving them send tensor data.
    const auto sent = [&] {
      const fsdp::CommCounts& counts = world.mesh().group(0)->counts();
      const fsdp::CommCounts& all = world.communicator()->counts();
      return counts.wire_bytes + all.wire_bytes + counts.all_gathers + all.all_gathers +
             counts.broadcasts + all.broadcasts + counts.all_reduces + all.all_reduces;
    };
    const auto before = sent();
    tessera::SaveOptions saving;
    saving.file_system = &fs;
    tessera::save("/run/a", fsdp::state_dict(model), world.ranks(), saving);
    RANK_CHECK(sent() == before);
    // A scalar has no rows: every rank holds it.
    const tessera::LiveState state = fsdp::state_dict(model, evenly());
    RANK_CHECK(find_tensor(state, "model.scalar")->replicated);
    RANK_CHECK(*static_cast<float*>(find_tensor(state, "model.scalar")->pieces[0].data) == 1.5f);
    bool found = false;
    for (const fsdp::ValueForm& form : fsdp::value_forms(model, evenly()))
      if (form.fqn == "scalar") {
        found = true;
        RANK_CHECK(form.placements[0] == tessera::Placement::replicate());
      }
    RANK_CHECK(found);
    // Nor does anything of a trained model with its optimizer, in the background or loaded.
    optim::AdamW optimizer(model->parameters());
    train_odd(model, optimizer, 0, 1, world.rank(), 2);
    const auto trained = sent();
    const auto all = [&] { return fsdp::state_dict(model, optimizer); };
    tessera::save("/run/b", all(), world.ranks(), saving);
    tessera::save_async("/run/c", all(), world.ranks(), saving).wait();
    tessera::LoadPolicy loading;
    loading.file_system = &fs;
    tessera::load("/run/b", all(), world.ranks(), loading);
    RANK_CHECK(sent() == trained);
  });
}

TEST_CASE("even chunks of FSDP x TP parameters are rows of their parts") {
  std::vector<CutStack> models(4, nullptr);
  std::vector<tessera::LiveState> rows(4), shards(4);
  fsdp::run_threads(4, [&](fsdp::World& world) {
    const auto r = static_cast<std::size_t>(world.rank());
    const fsdp::DeviceMesh mesh(world, {2, 2}, {"data", "tensor"});
    models[r] = make_cut_stack(mesh.sub(1));
    shard_cut(models[r], mesh, MemoryLayout::kFlat);
    rows[r] = fsdp::state_dict(models[r], evenly());
    shards[r] = fsdp::state_dict(models[r]);
    for (const fsdp::ValueForm& form : fsdp::value_forms(models[r], evenly())) {
      if (form.fqn == "b0.up.weight")
        RANK_CHECK(form.placements[0] == tessera::Placement::strided_shard(0, 2));
      if (form.fqn == "b0.down.weight")
        RANK_CHECK(form.placements[0] == tessera::Placement::shard(0));
    }
  });
  for (const std::string& name : names_of(shards[0])) {
    CAPTURE(name);
    CHECK(same_bits(assembled(rows, name), assembled(shards, name)));
  }
}

}  // namespace state_even_chunks_test
