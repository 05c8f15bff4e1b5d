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
    RANK_CHECK(found.find("gives \"matrix\" of shape [") != std::string::npos, found);
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

}  // namespace state_extension_agree_test
