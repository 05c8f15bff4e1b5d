// Tensor-, pipeline- and expert-parallel ranks and interleaved pipelines together: what is read is
// the model, what is written is what the ranks of that size hold, there and back is the identity.
// Layouts written by a script.
#include <tessera/base/error.h>

#include <catch2/catch.hpp>

#include "tests/format/megatron_fixture.h"

namespace tessera::megatron_grid_test {
namespace {

using testing::RankFolders;
using testing::ToyOptions;
using testing::WrittenCheckpoint;
using Kind = ToyOptions::Optimizer;

struct Grid {
  std::int64_t tp, pp, ep, vpp;
  std::string mesh() const {
    std::string text = "tp=" + std::to_string(tp) + ",pp=" + std::to_string(pp);
    text += ",ep=" + std::to_string(ep);
    return vpp > 1 ? text + ",vpp=" + std::to_string(vpp) : text;
  }
  ToyOptions of(ToyOptions options) const {
    options.tp = tp;
    options.pp = pp;
    options.ep = ep;
    options.virtual_stages = vpp;
    return options;
  }
};
constexpr Grid kGrids[] = {{1, 1, 1, 1}, {1, 1, 2, 1}, {2, 1, 4, 1}, {1, 2, 1, 2}, {2, 2, 2, 1},
                           {1, 4, 1, 2}, {2, 2, 2, 2}, {1, 2, 4, 4}, {4, 2, 1, 2}};

ToyOptions mixture(Kind kind, bool half, bool tied) {
  ToyOptions options;
  options.layers = 8;
  options.experts = 4;
  options.optimizer = kind;
  options.half = half;
  options.tied = tied;
  return options;
}

template <class Body>
void for_each_model(Body body) {
  for (const Kind kind : {Kind::kNone, Kind::kAdam, Kind::kSgd, Kind::kDistributed})
    for (const bool half : {false, true})
      for (const bool tied : {false, true}) {
        CAPTURE(static_cast<int>(kind), half, tied);
        body(mixture(kind, half, tied));
      }
}

}  // namespace

TEST_CASE("expert ranks and chunks of stages are put together to the whole model and optimizer",
          "[wide]") {
  for_each_model([](const ToyOptions& options) {
    for (const Grid& grid : kGrids) {
      CAPTURE(grid.mesh());
      RankFolders toy(grid.of(options));
      CHECK(toy.content() == testing::toy_content(options));
    }
  });
}

TEST_CASE("rank files written for a grid hold what the ranks of that grid hold", "[wide]") {
  for_each_model([](const ToyOptions& options) {
    RankFolders toy(options);
    const Manifest manifest = toy.read();
    for (const Grid& grid : kGrids) {
      CAPTURE(grid.mesh());
      const WrittenCheckpoint written(megatron_torch_driver(), manifest, *toy.directory,
                                      testing::mesh_request(grid.mesh()));
      const auto expected = testing::toy_files(grid.of(options));
      REQUIRE(written.files.size() == expected.size());
      for (const auto& [path, bytes] : expected) {
        CAPTURE(path);
        REQUIRE(written.files.contains(path));
        CHECK(testing::tensors_in(written.files.at(path)) == testing::tensors_in(bytes));
      }
    }
  });
}

TEST_CASE("there and back between any two grids is the identity", "[wide]") {
  for_each_model([](const ToyOptions& options) {
    RankFolders toy(options);
    std::vector<std::string> meshes;
    for (const Grid& grid : kGrids) meshes.push_back(grid.mesh());
    for (std::size_t i = meshes.size(); i-- > 0;) meshes.push_back(std::string(meshes[i]));
    const auto contents = testing::through_meshes(*toy.fs.open_directory("/c"), meshes);
    CHECK(contents[0].tensors == testing::toy_content(options));
    for (std::size_t i = 1; i < contents.size(); ++i) {
      CAPTURE(meshes[i - 1]);
      CHECK(contents[i].tensors == contents[0].tensors);
      CHECK(contents[i].values == contents[0].values);
    }
  });
}

TEST_CASE("sizes that do not divide layers or experts are refused with the numbers") {
  const ToyOptions options = mixture(Kind::kAdam, false, false);
  const auto refused = [&](const std::string& mesh, Code code = Code::kInvalidArgument) {
    return testing::write_failure(options, testing::mesh_request(mesh), code);
  };
  CHECK_THAT(refused("ep=3"),
             Catch::Contains("4 experts cannot be shared evenly by 3 expert-parallel ranks"));
  CHECK_THAT(refused("pp=2,vpp=3"),
             Catch::Contains("8 layers cannot be shared evenly by 2 pipeline stages of 3 chunks"));
  CHECK_THAT(refused("pp=1,vpp=2"), Catch::Contains("vpp=2 without pipeline stages"));
  CHECK_THAT(refused("fsdp=2"), Catch::Contains("tp, pp, ep, vpp, and dp"));
  ToyOptions dense = options;
  dense.experts = 0;
  CHECK_THAT(testing::write_failure(dense, testing::mesh_request("ep=2"), Code::kInvalidArgument),
             Catch::Contains("no experts"));
}

TEST_CASE("args state the sizes of the grid") {
  RankFolders toy(mixture(Kind::kNone, false, false));
  const Manifest manifest = toy.read();
  const WrittenCheckpoint written(megatron_torch_driver(), manifest, *toy.directory,
                                  testing::mesh_request("tp=2,pp=2,ep=2"));
  CHECK(written.files.contains("mp_rank_01_001_001/model_optim_rng.pt"));
  const Manifest back = megatron_torch_driver().manifest(written.place(), {});
  const Value& args = back.state.find("args")->value.as_opaque().state;
  CHECK(*args.find("expert_model_parallel_size") == Value::integer(2));
}

TEST_CASE("experts cut by another tensor-parallel size than the rest are refused") {
  ToyOptions options = mixture(Kind::kNone, false, false);
  options.tp = 2;
  options.more_args = {{"expert_tensor_parallel_size", Value::integer(1)}};
  RankFolders toy(options);
  std::string message;
  CHECK(toy.failure(message) == Code::kUnsupported);
  CHECK_THAT(message, Catch::Contains("expert_tensor_parallel_size 1"));
}

TEST_CASE(
    "experts that are whole are cut like all else, whatever their run did, and that is said") {
  ToyOptions options = mixture(Kind::kNone, false, false);
  RankFolders toy(options);
  Manifest manifest = toy.read();
  for (StateEntry& entry : manifest.state.entries)
    if (entry.name == "args")  // as torch_dist has them
      entry.value =
          testing::argument_namespace({{"tensor_model_parallel_size", testing::number(2)},
                                       {"expert_tensor_parallel_size", testing::number(1)},
                                       {"expert_model_parallel_size", testing::number(1)},
                                       {"swiglu", Value::boolean(true)}});
  const WrittenCheckpoint written(megatron_torch_driver(), manifest, *toy.directory,
                                  testing::mesh_request("tp=2,ep=2"));
  const auto said = std::ranges::find_if(written.plan.notes, [](const Note& note) {
    return note.message.find("expert_tensor_parallel_size") != std::string::npos;
  });
  REQUIRE(said != written.plan.notes.end());
  CHECK(said->severity == Severity::kWarning);
  const Manifest back = testing::read_all(megatron_torch_driver(), written.place());
  const Value& args = back.state.find("args")->value.as_opaque().state;
  CHECK(*args.find("expert_tensor_parallel_size") == Value::integer(2));
  const auto expected = toy.content();
  CHECK(testing::content_of(back, *written.directory) == expected);
}

TEST_CASE("groups of experts that differ from the others stay groups of their own") {
  ToyOptions options = mixture(Kind::kAdam, true, false);
  options.ep = 2;
  options.expert_lr = 0.5;
  RankFolders toy(options);
  const auto contents =
      testing::through_meshes(*toy.fs.open_directory("/c"), {"ep=1", "ep=4", "ep=2,pp=2"});
  CHECK(contents[0].values.at("optimizer.param_groups.2.lr") == "0.5");
  for (const auto& content : contents) CHECK(content == contents[0]);
}

}  // namespace tessera::megatron_grid_test
