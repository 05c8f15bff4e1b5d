// What extensions must answer alike on all ranks, and what their answers must be.
#include <tessera/base/error.h>

#include "tests/fsdp/extension_models.h"
#include "tests/fsdp/torch_and_catch.h"

namespace state_extension_agree_test {

namespace fsdp = tessera::fsdp;
using namespace tessera::fsdp::test;
using fsdp::StoredPart;
using tessera::Box;
using tessera::Placement;

TEST_CASE("ranks that cut a part differently are refused before anything is saved or loaded") {
  struct Apart : Defaults {
    int rank = 0;
    Box chunk(const StoredPart& part, int index, int count) const override {
      return Defaults::chunk(part, rank == 0 ? index : count - 1 - index, count);
    }
    Placement chunk_as_dtensor(const StoredPart&, const tessera::Mesh&) const override {
      return rank == 0 ? Placement::replicate() : Placement::shard(1);
    }
  };
  struct Shapes : Defaults {
    int rank = 0;
    std::vector<StoredPart> post_unflatten(const torch::nn::Module&, const std::string& name,
                                           const at::Tensor& whole) const override {
      return {{name, rank == 0 ? whole : whole.narrow(0, 0, 4)}};
    }
  };
  struct Halves : Defaults {  // one part more on one rank
    bool whole = false;
    std::vector<StoredPart> post_unflatten(const torch::nn::Module&, const std::string& name,
                                           const at::Tensor& all) const override {
      if (whole) return {{name, all}};
      return {{"top", all.narrow(0, 0, 3)}, {"bottom", all.narrow(0, 3, 3)}};
    }
  };
  struct Nothing : Defaults {
    std::vector<StoredPart> post_unflatten(const torch::nn::Module&, const std::string&,
                                           const at::Tensor&) const override {
      return {};
    }
  };
  const bool with_mesh = GENERATE(false, true);
  fsdp::run_threads(2, [&](fsdp::World& world) {
    const auto refusal = [&](std::shared_ptr<fsdp::Extension> extension) {
      Matrix model;
      fully_shard(model, options_of(world, with_mesh, std::move(extension)));
      const std::string found = error_of([&] { fsdp::state_dict(model); });
      world.reset();
      return found;
    };
    const auto apart = std::make_shared<Apart>();
    apart->rank = world.rank();
    std::string found = refusal(apart);
    RANK_CHECK(
        found.find(with_mesh ? "chunk_as_dtensor() of \"matrix\" [6,5] over 2 ranks"
                             : "chunk() of \"matrix\" [6,5] over 2 ranks") != std::string::npos,
        found);
    const auto shapes = std::make_shared<Shapes>();
    shapes->rank = world.rank();
    found = refusal(shapes);
    RANK_CHECK(found.find("parts of \"matrix\" differ between ranks: \"matrix\" Float [") !=
                   std::string::npos,
               found);
    RANK_CHECK(found.find("[6,5]") != std::string::npos && found.find("[4,5]") != std::string::npos,
               found);
    const auto more = std::make_shared<Halves>();
    more->whole = world.rank() == 0;
    found = refusal(more);
    RANK_CHECK(found.find("\"top\" Float [3,5]") != std::string::npos, found);
    found = refusal(std::make_shared<Nothing>());
    RANK_CHECK(found.find("post_unflatten of \"matrix\" gives no part") != std::string::npos,
               found);
  });
}

TEST_CASE("a gather that gives another type is refused by name") {
  struct Half : Defaults {
    at::Tensor gather(const StoredPart& chunk, const tessera::Shape& whole,
                      const std::vector<Box>& chunks, fsdp::Communicator& ranks) const override {
      return Defaults::gather(chunk, whole, chunks, ranks).to(torch::kHalf);
    }
  };
  tessera::MemoryFileSystem fs;
  tessera::SaveOptions saving;
  tessera::LoadPolicy loading;
  saving.file_system = loading.file_system = &fs;
  fsdp::run_threads(2, [&](fsdp::World& world) {
    Matrix model;
    fully_shard(model, options_of(world, true, std::make_shared<Half>()));
    tessera::save("/run/a", fsdp::state_dict(model), world.ranks(), saving);
    const std::string found =
        error_of([&] { tessera::load("/run/a", fsdp::state_dict(model), world.ranks(), loading); });
    RANK_CHECK(found.find("gather of \"model.matrix\": expected type Float, found Half") !=
                   std::string::npos,
               found);
  });
}

TEST_CASE("every hook of an inner module's parameter hears its name within that module") {
  struct Heard : Defaults {
    void hear(const std::string& name) const {
      if (name != "matrix" && name != "plain") throw std::runtime_error("heard " + name);
    }
    at::Tensor pre_flatten(const torch::nn::Module&, const std::string& name,
                           const at::Tensor& parameter) const override {
      hear(name);
      return parameter;
    }
    std::vector<StoredPart> post_unflatten(const torch::nn::Module& module, const std::string& name,
                                           const at::Tensor& whole) const override {
      hear(name);
      return Defaults::post_unflatten(module, name, whole);
    }
    Box chunk(const StoredPart& part, int index, int count) const override {
      hear(part.name);
      return Defaults::chunk(part, index, count);
    }
    Placement chunk_as_dtensor(const StoredPart& part, const tessera::Mesh& mesh) const override {
      hear(part.name);
      return Defaults::chunk_as_dtensor(part, mesh);
    }
    at::Tensor gather(const StoredPart& chunk, const tessera::Shape& whole,
                      const std::vector<Box>& chunks, fsdp::Communicator& ranks) const override {
      hear(chunk.name);
      return Defaults::gather(chunk, whole, chunks, ranks);
    }
    at::Tensor pre_load(const torch::nn::Module& module, const std::string& name,
                        const std::vector<StoredPart>& stored) const override {
      hear(name);
      return Defaults::pre_load(module, name, stored);
    }
  };
  const bool with_mesh = GENERATE(false, true);
  tessera::MemoryFileSystem fs;
  tessera::SaveOptions saving;
  tessera::LoadPolicy loading;
  saving.file_system = loading.file_system = &fs;
  fsdp::run_threads(2, [&](fsdp::World& world) {
    HoldsMatrix model;
    fully_shard(model, options_of(world, with_mesh, std::make_shared<Heard>()));
    tessera::save("/run/a", fsdp::state_dict(model), world.ranks(), saving);
    fill(model->inner, -3);
    tessera::load("/run/a", fsdp::state_dict(model), world.ranks(), loading);
    const auto forms = fsdp::value_forms(model);
    RANK_CHECK(forms[0].fqn == "inner.matrix", forms[0].fqn);
    const fsdp::SummonFullParams summoned(model);
    RANK_CHECK(same_bits(model->inner->matrix, counted({kRows, kColumns})));
  });
  CHECK(same_bits(stored_matrix(fs, "inner.matrix"), counted({kRows, kColumns})));
}

TEST_CASE("what an extension says of parts must be alike on the ranks of its mesh too") {
  struct Parts : fsdp::Extension {
    std::optional<fsdp::DeviceMesh> tensor;
    std::int64_t begin = 0, rows = 0;
    std::optional<int> dim;
    std::optional<fsdp::DeviceMesh> mesh() const override { return tensor; }
    at::Tensor pre_flatten(const torch::nn::Module&, const std::string& name,
                           const at::Tensor& parameter) const override {
      return name == "matrix" ? parameter.narrow(0, begin, rows) : parameter;
    }
    std::optional<int> sharded_dim(const torch::nn::Module&, const std::string& name,
                                   const at::Tensor&) const override {
      return name == "matrix" ? dim : std::nullopt;
    }
  };
  const bool uneven = GENERATE(false, true);
  fsdp::run_threads(4, [&](fsdp::World& world) {
    const fsdp::DeviceMesh mesh(world, {2, 2}, {"data", "tensor"});
    const bool second = mesh.coordinate(1) == 1;
    const auto extension = std::make_shared<Parts>();
    extension->tensor = mesh.sub(1);
    extension->rows = uneven && second ? 2 : 3;
    extension->begin = second ? 3 : 0;
    extension->dim = uneven || !second ? std::optional<int>(0) : std::nullopt;
    fsdp::Options options;
    options.mesh = mesh.sub(0);
    options.extension = extension;
    Matrix model;
    const std::string found = error_of([&] { fully_shard(model, options); });
    RANK_CHECK(
        found.find("parameters differ between ranks: \"matrix\" Float [") != std::string::npos,
        found);
    RANK_CHECK(found.find("a part by dim 0") != std::string::npos, found);
    RANK_CHECK(same_bits(model->matrix, counted({kRows, kColumns})));
  });
}

}  // namespace state_extension_agree_test
