// Each hook of an extension: asked where it should be, of its own unit alone, and what it answers
// is what is sharded, stored and loaded. Live states are read piece by piece, files by a reader
// that knows no extension.
#include <tessera/base/error.h>
#include <tessera/layout/layout.h>

#include <chrono>
#include <functional>

#include "tests/fsdp/extension_models.h"
#include "tests/fsdp/torch_and_catch.h"

namespace state_extension_hooks_test {

namespace fsdp = tessera::fsdp;
using namespace tessera::fsdp::test;
using fsdp::MemoryLayout;
using fsdp::StoredPart;
using tessera::Box;
using tessera::Placement;

namespace {

/// Which hook was asked of what, in order; without repetitions.
struct Recorder : Defaults {
  mutable std::vector<std::string> calls;
  void record(const std::string& call) const {
    if (calls.empty() || calls.back() != call) calls.push_back(call);
  }
  std::string take() const {
    std::string out;
    for (const std::string& call : calls) out += call + "; ";
    calls.clear();
    return out;
  }

  at::Tensor pre_flatten(const torch::nn::Module& module, const std::string& name,
                         const at::Tensor& parameter) const override {
    record("pre_flatten " + name);
    return Defaults::pre_flatten(module, name, parameter);
  }
  std::optional<int> sharded_dim(const torch::nn::Module& module, const std::string& name,
                                 const at::Tensor& parameter) const override {
    record("sharded_dim " + name);
    return Defaults::sharded_dim(module, name, parameter);
  }
  std::vector<StoredPart> post_unflatten(const torch::nn::Module& module, const std::string& name,
                                         const at::Tensor& whole) const override {
    record("post_unflatten " + name);
    return Defaults::post_unflatten(module, name, whole);
  }
  Box chunk(const StoredPart& part, int index, int count) const override {
    record("chunk " + part.name);
    return Defaults::chunk(part, index, count);
  }
  Placement chunk_as_dtensor(const StoredPart& part, const tessera::Mesh& mesh) const override {
    record("chunk_as_dtensor " + part.name);
    return Defaults::chunk_as_dtensor(part, mesh);
  }
  at::Tensor gather(const StoredPart& chunk, const tessera::Shape& whole,
                    const std::vector<Box>& chunks, fsdp::Communicator& ranks) const override {
    record("gather " + chunk.name);
    return Defaults::gather(chunk, whole, chunks, ranks);
  }
  at::Tensor pre_load(const torch::nn::Module& module, const std::string& name,
                      const std::vector<StoredPart>& stored) const override {
    record("pre_load " + name);
    return Defaults::pre_load(module, name, stored);
  }
};

/// Saves on `ranks` with `extension`, and loads on the same ranks with it, and on `other` with
/// another of the same kind: every element comes back.
template <class Made>
void round_trip(int ranks, int other, bool with_mesh, MemoryLayout layout,
                const std::function<void(fsdp::World&, const tessera::LiveState&)>& look = {}) {
  tessera::MemoryFileSystem fs;
  tessera::SaveOptions saving;
  tessera::LoadPolicy loading;
  saving.file_system = loading.file_system = &fs;
  const auto load_into = [&](fsdp::World& world, Matrix& model) {
    fill(model, -3);
    const tessera::LoadResult result =
        tessera::load("/run/a", fsdp::state_dict(model), world.ranks(), loading);
    RANK_CHECK(result.missing.empty() && result.unexpected.empty() && result.mismatched.empty());
    const fsdp::SummonFullParams summoned(model);
    RANK_CHECK(same_bits(model->matrix, counted({kRows, kColumns})));
    RANK_CHECK(same_bits(model->plain, counted({7})));
  };
  fsdp::run_threads(ranks, [&](fsdp::World& world) {
    Matrix model;
    fully_shard(model, options_of(world, with_mesh, std::make_shared<Made>(), layout));
    const tessera::LiveState state = fsdp::state_dict(model);
    if (look) look(world, state);
    tessera::save("/run/a", state, world.ranks(), saving);
    load_into(world, model);
  });
  CHECK(same_bits(stored_matrix(fs), counted({kRows, kColumns})));
  fsdp::run_threads(other, [&](fsdp::World& world) {
    Matrix model;
    fully_shard(model, options_of(world, !with_mesh, std::make_shared<Made>()));
    load_into(world, model);
  });
}

/// Columns, from the last rank to the first.
Box columns_backwards(int index, int count) {
  return tessera::chunk_box({kRows, kColumns}, 1, count, count - 1 - index);
}

}  // namespace

TEST_CASE("every hook is asked on its way, and only of its own instance's parameters") {
  const bool with_mesh = GENERATE(true, false);
  tessera::MemoryFileSystem fs;
  tessera::SaveOptions saving;
  tessera::LoadPolicy loading;
  saving.file_system = loading.file_system = &fs;
  fsdp::run_threads(2, [&](fsdp::World& world) {
    const auto first = std::make_shared<Recorder>(), second = std::make_shared<Recorder>();
    Matrix one, two, bare;
    fully_shard(one, options_of(world, with_mesh, first));
    const std::string made =
        "pre_flatten matrix; sharded_dim matrix; pre_flatten plain; sharded_dim plain; ";
    RANK_CHECK(first->take() == made);
    RANK_CHECK(second->take().empty());
    fully_shard(two, options_of(world, !with_mesh, second));
    fully_shard(bare, options_of(world, with_mesh, nullptr));
    RANK_CHECK(first->take().empty());
    RANK_CHECK(second->take() == made);
    const std::string chunk = with_mesh ? "chunk_as_dtensor matrix; " : "chunk matrix; ";
    const auto state = fsdp::state_dict(one);
    RANK_CHECK(first->take() == "post_unflatten matrix; " + chunk);
    tessera::save("/run/a", state, world.ranks(), saving);
    RANK_CHECK(first->take().empty());
    tessera::load("/run/a", fsdp::state_dict(bare), world.ranks(), loading);
    RANK_CHECK(first->take().empty() && second->take().empty());
    const auto target = fsdp::state_dict(one);
    first->take();
    tessera::load("/run/a", target, world.ranks(), loading);
    RANK_CHECK(first->take() == "gather matrix; pre_load matrix; ");
    RANK_CHECK(second->take().empty());
  });
}

TEST_CASE("an extension that leaves all to the defaults stores the parameter itself, in rows") {
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  const bool with_mesh = GENERATE(true, false);
  round_trip<Defaults>(4, 3, with_mesh, layout, [](fsdp::World& world, const auto& state) {
    const tessera::LiveTensor* live = find_tensor(state, "model.matrix");
    RANK_CHECK(live && live->pieces.size() == 1);
    RANK_CHECK(live->pieces[0].chunk.box ==
               tessera::chunk_box({kRows, kColumns}, 0, 4, world.rank()));
  });
}

TEST_CASE("without a mesh chunk says which box of a stored part each rank keeps") {
  struct Columns : Defaults {
    Box chunk(const StoredPart& part, int index, int count) const override {
      if (part.tensor.sizes() != at::IntArrayRef({kRows, kColumns})) throw std::runtime_error("?");
      return columns_backwards(index, count);
    }
  };
  const auto layout = GENERATE(MemoryLayout::kFlat, MemoryLayout::kPerParameter);
  const int ranks = GENERATE(2, 3, 8);  // 8: more than columns
  round_trip<Columns>(ranks, 2, false, layout, [&](fsdp::World& world, const auto& state) {
    const tessera::LiveTensor* live = find_tensor(state, "model.matrix");
    RANK_CHECK(live && live->pieces.size() == 1);
    RANK_CHECK(live->pieces[0].chunk.box == columns_backwards(world.rank(), world.size()));
    RANK_CHECK(!live->replicated);
  });
}

TEST_CASE("all of a part may belong to one rank, and corners to several") {
  struct Corners : Defaults {  // 3 ranks: [0:4,0:5], nothing, [4:6,0:5]
    Box chunk(const StoredPart&, int index, int) const override {
      if (index == 1) return {{4, 0}, {0, kColumns}};
      return index == 0 ? Box{{0, 0}, {4, kColumns}} : Box{{4, 0}, {2, kColumns}};
    }
  };
  struct Last : Defaults {
    Box chunk(const StoredPart&, int index, int count) const override {
      return index == count - 1 ? Box::whole({kRows, kColumns}) : Box{{0, 0}, {0, 0}};
    }
  };
  round_trip<Corners>(3, 1, false, MemoryLayout::kFlat);
  round_trip<Last>(3, 2, false, MemoryLayout::kFlat);
}

TEST_CASE("with a mesh chunk_as_dtensor says how a stored part lies on its sharded dim") {
  struct Columns : Defaults {
    Placement chunk_as_dtensor(const StoredPart&, const tessera::Mesh&) const override {
      return Placement::shard(1);
    }
  };
  struct Everywhere : Defaults {
    Placement chunk_as_dtensor(const StoredPart&, const tessera::Mesh&) const override {
      return Placement::replicate();
    }
  };
  const int ranks = GENERATE(2, 8);
  round_trip<Columns>(ranks, 3, true, MemoryLayout::kFlat, [](auto& world, const auto& state) {
    const tessera::LiveTensor* live = find_tensor(state, "model.matrix");
    RANK_CHECK(live && !live->replicated &&
               live->pieces[0].chunk.box ==
                   tessera::chunk_box({kRows, kColumns}, 1, world.size(), world.rank()));
  });
  round_trip<Everywhere>(ranks, 3, true, MemoryLayout::kFlat, [](auto&, const auto& state) {
    const tessera::LiveTensor* live = find_tensor(state, "model.matrix");
    RANK_CHECK(live && live->replicated &&
               live->pieces[0].chunk.box == Box::whole({kRows, kColumns}));
  });
  // Beside replicas: the placement on the dim that the unit shards over.
  tessera::MemoryFileSystem fs;
  tessera::SaveOptions saving;
  saving.file_system = &fs;
  fsdp::run_threads(4, [&](fsdp::World& world) {
    Matrix model;
    fsdp::Options options;
    options.mesh = fsdp::DeviceMesh(world, {2, 2}, {"replicate", "shard"});
    options.strategy = fsdp::ShardingStrategy::kHybridShard;
    options.extension = std::make_shared<Columns>();
    fully_shard(model, options);
    const auto forms = fsdp::value_forms(model);
    RANK_CHECK(forms[0].fqn == "matrix" && forms[0].placements[0] == Placement::replicate() &&
               forms[0].placements[1] == Placement::shard(1));
    tessera::save("/run/a", fsdp::state_dict(model), world.ranks(), saving);
  });
  CHECK(same_bits(stored_matrix(fs), counted({kRows, kColumns})));
}

TEST_CASE("gather may be done in another way, and what it gives is looked at") {
  struct ByBytes : Defaults {  // each rank's chunk as host bytes, columns
    Box chunk(const StoredPart&, int index, int count) const override {
      return tessera::chunk_box({kRows, kColumns}, 1, count, index);
    }
    Placement chunk_as_dtensor(const StoredPart&, const tessera::Mesh&) const override {
      return Placement::shard(1);
    }
    at::Tensor gather(const StoredPart& chunk, const tessera::Shape&,
                      const std::vector<Box>& chunks, fsdp::Communicator& ranks) const override {
      const at::Tensor own = chunk.tensor.contiguous();
      const auto* data = static_cast<const std::byte*>(own.data_ptr());
      const auto all = ranks.all_gather_bytes({data, own.nbytes()}, {"test", {}});
      std::vector<at::Tensor> columns;
      for (std::size_t r = 0; r < all.size(); ++r)
        columns.push_back(
            torch::from_blob(const_cast<std::byte*>(all[r].data()), {kRows, chunks[r].shape[1]}));
      return torch::cat(columns, 1);
    }
  };
  round_trip<ByBytes>(2, 5, true, MemoryLayout::kFlat);

  struct Short : Defaults {
    at::Tensor gather(const StoredPart& chunk, const tessera::Shape&, const std::vector<Box>&,
                      fsdp::Communicator&) const override {
      return chunk.tensor;
    }
  };
  tessera::MemoryFileSystem fs;
  tessera::SaveOptions saving;
  tessera::LoadPolicy loading;
  saving.file_system = loading.file_system = &fs;
  fsdp::run_threads(2, [&](fsdp::World& world) {
    Matrix model;
    fully_shard(model, options_of(world, true, std::make_shared<Short>()));
    tessera::save("/run/a", fsdp::state_dict(model), world.ranks(), saving);
    fill(model, -3);
    std::string found;
    try {
      tessera::load("/run/a", fsdp::state_dict(model), world.ranks(), loading);
    } catch (const tessera::Error& error) {
      found = error.what();
    }
    RANK_CHECK(found.find("gather of \"model.matrix\": expected shape [6,5], found [3,5]") !=
                   std::string::npos,
               found);
    for (const torch::Tensor& parameter : model->parameters())
      RANK_CHECK(same_bits(parameter, torch::full_like(parameter, -3)), "nothing is half loaded");
  });
}

TEST_CASE("a gather that fails on one rank fails the load on all, and soon") {
  struct Fails : Defaults {
    bool here = false;
    at::Tensor gather(const StoredPart& chunk, const tessera::Shape& whole,
                      const std::vector<Box>& chunks, fsdp::Communicator& ranks) const override {
      if (here) throw std::runtime_error("the wire is cut");
      return Defaults::gather(chunk, whole, chunks, ranks);
    }
  };
  tessera::MemoryFileSystem fs;
  tessera::SaveOptions saving;
  tessera::LoadPolicy loading;
  saving.file_system = loading.file_system = &fs;
  const auto begun = std::chrono::steady_clock::now();
  fsdp::run_threads(3, [&](fsdp::World& world) {
    const auto extension = std::make_shared<Fails>();
    Matrix model;
    fully_shard(model, options_of(world, true, extension));
    tessera::save("/run/a", fsdp::state_dict(model), world.ranks(), saving);
    const auto target = fsdp::state_dict(model);
    extension->here = world.rank() == 1;
    std::string found;
    try {
      tessera::load("/run/a", target, world.ranks(), loading);
    } catch (const std::exception& error) {
      found = error.what();
    }
    RANK_CHECK(found.find("the wire is cut") != std::string::npos, found);
  });
  CHECK(std::chrono::steady_clock::now() - begun < std::chrono::seconds(15));
}

TEST_CASE("cuts that leave elements out, hold them twice or lie outside are refused by name") {
  using Cutter = std::function<Box(int index)>;
  struct Cuts : Defaults {
    Cutter cutter;
    Box chunk(const StoredPart&, int index, int) const override { return cutter(index); }
  };
  struct Places : Defaults {
    Placement placement;
    Placement chunk_as_dtensor(const StoredPart&, const tessera::Mesh&) const override {
      return placement;
    }
  };
  const auto message = [](bool with_mesh, const std::shared_ptr<fsdp::Extension>& extension) {
    std::string found;
    fsdp::run_threads(2, [&](fsdp::World& world) {
      Matrix model;
      fully_shard(model, options_of(world, with_mesh, extension));
      try {
        fsdp::state_dict(model);
      } catch (const tessera::Error& error) {
        if (world.rank() == 0) found = error.what();
      }
    });
    return found;
  };
  const auto cut = [&](Cutter cutter) {
    auto extension = std::make_shared<Cuts>();
    extension->cutter = std::move(cutter);
    return message(false, extension);
  };
  const auto placed = [&](Placement placement) {
    auto extension = std::make_shared<Places>();
    extension->placement = placement;
    return message(true, extension);
  };
  const auto contains = [](const char* text) { return Catch::Contains(text); };
  CHECK_THAT(cut([](int r) {
               return Box{{3 * r, 0}, {2, kColumns}};
             }),
             contains("chunk() of \"matrix\" [6,5] over 2 ranks") && contains("is in no chunk"));
  CHECK_THAT(cut([](int r) { return Box{{2 * r, 0}, {4, kColumns}}; }), contains("\"matrix\""));
  CHECK_THAT(cut([](int) {
               return Box::whole({kRows, kColumns});
             }),
             contains("ranks hold the same elements"));
  CHECK_THAT(cut([](int r) {
               return Box{{3 * r, 0}, {4, kColumns}};
             }),
             contains("rank 1 of 2: [3:7,0:5] does not lie in [6,5]"));
  CHECK_THAT(cut([](int r) { return Box{{3 * r}, {3}}; }), contains("does not lie in [6,5]"));
  CHECK_THAT(cut([](int) {
               return Box{{0}, {kRows, kColumns}};
             }),
             contains("[6,5] from [0] does not lie in [6,5]"));
  CHECK_THAT(placed(Placement::shard(2)),
             contains("chunk_as_dtensor() of \"matrix\" with 2 dims") && contains("shard(2)"));
  CHECK_THAT(placed(Placement::shard(-1)), contains("shard(-1)"));
  CHECK_THAT(placed(Placement::flat()), contains("found flat"));
  CHECK_THAT(placed(Placement::strided_shard(0, 2)), contains("found strided(0,2)"));
}

TEST_CASE("a transform of several parts without its way back is refused by name") {
  struct Halves : Defaults {
    std::vector<StoredPart> post_unflatten(const torch::nn::Module&, const std::string&,
                                           const at::Tensor& whole) const override {
      return {{"top", whole.narrow(0, 0, 3)}, {"bottom", whole.narrow(0, 3, 3)}};
    }
  };
  tessera::MemoryFileSystem fs;
  tessera::SaveOptions saving;
  tessera::LoadPolicy loading;
  saving.file_system = loading.file_system = &fs;
  const auto alone = tessera::single_rank();
  Matrix model;
  fsdp::Options options;
  options.extension = std::make_shared<Halves>();
  fully_shard(model, options);
  tessera::save("/run/a", fsdp::state_dict(model), *alone, saving);
  CHECK(same_bits(stored_matrix(fs, "bottom", {3, kColumns}),
                  counted({kRows, kColumns}).narrow(0, 3, 3)));
  CHECK_THROWS_WITH(tessera::load("/run/a", fsdp::state_dict(model), *alone, loading),
                    Catch::Contains("\"matrix\" in another form and does not define pre_load()"));
}

}  // namespace state_extension_hooks_test
