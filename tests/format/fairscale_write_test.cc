// FairScale's files written for other world sizes: there and back bit for bit, wrappers kept, and
// states of other formats in one wrapper at the root.
#include <tessera/base/error.h>
#include <tessera/encoding/torch_archive.h>
#include <tessera/format/torch_dcp.h>
#include <tessera/format/torch_save.h>
#include <tessera/ops/convert.h>
#include <tessera/state/roles.h>

#include <array>
#include <catch2/catch.hpp>
#include <random>

#include "tests/format/fairscale_fixture.h"
#include "tests/support/convert_case.h"
#include "tests/support/sample_case.h"

namespace fairscale_write_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

constexpr std::array<std::int64_t, 7> kRanks = {1, 2, 3, 4, 7, 8, 16};

TargetRequest ranks(std::int64_t world_size) {
  TargetRequest request;
  request.world_size = world_size;
  return request;
}

std::vector<SceneWrapper> random_wrappers(std::mt19937_64& random) {
  const auto pick = [&](std::int64_t below) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(below));
  };
  std::vector<SceneWrapper> wrappers(1);
  for (std::int64_t w = pick(4); w > 0; --w)
    wrappers.push_back({.path = fmt::format("layers.{}", wrappers.size()), .parameters = {}});
  for (SceneWrapper& wrapper : wrappers)
    for (std::int64_t p = 1 + pick(4); p > 0; --p) {
      std::vector<std::int64_t> extents;
      for (std::int64_t d = pick(4); d > 0; --d) extents.push_back(pick(8));
      wrapper.parameters.push_back(
          {fmt::format("p{}.weight", wrapper.parameters.size()), Shape(extents)});
    }
  return wrappers;
}

/// As commands open it: with the kinds of its tensors.
Manifest open_with_kinds(const FormatDriver& driver, const Place& place) {
  Manifest manifest = read_all(driver, place);
  assign_kinds(manifest, find_roles(manifest.state));
  return manifest;
}

struct Content {
  std::map<std::string, std::string> tensors;
  std::map<std::string, std::string> values;
  bool operator==(const Content&) const = default;
};
Content content(const Manifest& manifest, const Directory& directory) {
  return {content_of(manifest, directory), values_of(manifest, directory)};
}

/// The value of a rank file of the result.
Value root_of(const WrittenCheckpoint& written, const std::string& file) {
  const auto opened = written.directory->open(file);
  return open_torch_archive(ByteWindow::whole(*opened)).root;
}

}  // namespace

TEST_CASE("W to W' and back is bitwise equal for weights and state and steps and groups") {
  for (const bool flat : {true, false})
    for (std::uint64_t seed = 1; seed <= 2; ++seed) {
      std::mt19937_64 random(seed);
      Scene scene{.wrappers = random_wrappers(random)};
      for (SceneWrapper& wrapper : scene.wrappers) wrapper.flat = flat;
      scene.wrappers.back().used = seed != 2;
      for (const std::int64_t from : kRanks) {
        scene.world_size = from;
        const SceneCheckpoint checkpoint(scene);
        const Manifest source = read_all(fairscale_fsdp_driver(), checkpoint.place());
        const Content before = content(source, *checkpoint.directory);
        REQUIRE(scene_difference(scene, source, *checkpoint.directory, flat) == "");
        for (const std::int64_t to : kRanks) {
          INFO("seed " << seed << ", flat " << flat << ", " << from << " to " << to);
          const WrittenCheckpoint there(fairscale_fsdp_driver(), source, *checkpoint.directory,
                                        ranks(to));
          const Manifest middle = read_all(fairscale_fsdp_driver(), there.place());
          CHECK(middle.world_size == to);
          CHECK(scene_difference(scene, middle, *there.directory, flat) == "");
          const WrittenCheckpoint back(fairscale_fsdp_driver(), middle, *there.directory,
                                       ranks(from));
          const Manifest again = read_all(fairscale_fsdp_driver(), back.place());
          CHECK(content(again, *back.directory) == before);
        }
      }
    }
}

TEST_CASE("every sample reshards to every world size with its content") {
  for (const std::string& name : sample_names("fairscale")) {
    const SampleCase sample(name);
    const Manifest source = read_all(fairscale_fsdp_driver(), sample.place());
    for (const std::int64_t to : kRanks) {
      INFO(name << " to " << to);
      const WrittenCheckpoint written(fairscale_fsdp_driver(), source, *sample.directory,
                                      ranks(to));
      const Manifest manifest = read_all(fairscale_fsdp_driver(), written.place());
      CHECK(content(manifest, *written.directory) == content(source, *sample.directory));
    }
  }
}

TEST_CASE("a reshard to the sample's own world size gives the ranks' own shards") {
  for (const auto& [from, to, world] : std::vector<std::tuple<std::string, std::string, int>>{
           {"fairscale/nested_flat_w3", "fairscale/nested_flat_w4", 4},
           {"fairscale/nested_flat_w4", "fairscale/nested_flat_w3", 3}}) {
    const SampleCase source(from), target(to);
    const Manifest manifest = read_all(fairscale_fsdp_driver(), source.place());
    const WrittenCheckpoint written(fairscale_fsdp_driver(), manifest, *source.directory,
                                    ranks(world));
    for (int r = 0; r < world; ++r) {
      const std::string file = fmt::format("rank_{}.pt", r);
      const Manifest ours = read_all(torch_save_driver(), {written.directory.get(), file, file});
      const Manifest theirs = read_all(torch_save_driver(), {target.directory.get(), file, file});
      INFO(from << " as " << file << " of " << to);
      const auto mine = content_of(ours, *written.directory);
      for (const auto& [key, sum] : content_of(theirs, *target.directory)) {
        if (key.ends_with(".step")) continue;  // a number in ours
        INFO(key);
        CHECK((mine.contains(key) && mine.at(key) == sum));
      }
    }
  }
}

TEST_CASE("keys and file names that users chose are kept") {
  Scene scene{.wrappers = {{.path = "", .parameters = {{"w", {5}}}}}, .world_size = 2};
  scene.weights_key = "model";
  scene.metadata_key = "shard_metadata";
  scene.optimizer_key = "opt";
  scene.file = "step10_shard{}.pt";
  const SceneCheckpoint checkpoint(scene);
  const Manifest source = read_all(fairscale_fsdp_driver(), checkpoint.place());
  const WrittenCheckpoint written(fairscale_fsdp_driver(), source, *checkpoint.directory, ranks(3));
  const Value root = root_of(written, "step10_shard2.pt");
  CHECK(root.find("model"));
  CHECK(root.find("shard_metadata"));
  CHECK(root.find("opt"));
  CHECK(root.find("shard_metadata")->find("tessera") == nullptr);
}

TEST_CASE("padding is recomputed and zero whatever the source's was") {
  Scene scene{.wrappers = {{.path = "", .parameters = {{"w", {15}}}}}, .world_size = 4};
  scene.padding = 77;
  const SceneCheckpoint checkpoint(scene);
  const Manifest source = read_all(fairscale_fsdp_driver(), checkpoint.place());
  const WrittenCheckpoint written(fairscale_fsdp_driver(), source, *checkpoint.directory, ranks(7));
  for (int r = 0; r < 7; ++r) {
    const std::string file = fmt::format("rank_{}.pt", r);
    const Manifest raw = read_all(torch_save_driver(), {written.directory.get(), file, file});
    const auto shard = floats_of(raw, *written.directory, "weights.flat_param_0");
    REQUIRE(shard.size() == 3);
    for (int i = 0; i < 3; ++i)
      CHECK(shard[static_cast<std::size_t>(i)] ==
            (3 * r + i < 15 ? scene_value("w", "", 3 * r + i) : 0.0f));
  }
}

TEST_CASE("other keys and state of single ranks go to the ranks they came from") {
  Scene scene{.wrappers = {{.path = "", .parameters = {{"w", {5}}}}}, .world_size = 3};
  scene.edit = [](std::int64_t rank, ValueDict& root, RankArchive& archive) {
    root.emplace_back(text("seed"), number(rank));
    root.emplace_back(text("rng"), archive.tensor({2}, {1, static_cast<float>(rank)}));
    root.emplace_back(text("epoch"), number(4));
  };
  const SceneCheckpoint checkpoint(scene);
  const Manifest source = read_all(fairscale_fsdp_driver(), checkpoint.place());
  const WrittenCheckpoint written(fairscale_fsdp_driver(), source, *checkpoint.directory, ranks(3));
  CHECK(*root_of(written, "rank_1.pt").find("seed") == number(1));
  CHECK(*root_of(written, "rank_2.pt").find("epoch") == number(4));
  const Manifest again = read_all(fairscale_fsdp_driver(), written.place());
  CHECK(content(again, *written.directory) == content(source, *checkpoint.directory));
  CHECK_THROWS_WITH(fairscale_fsdp_driver().output_plan(source, ranks(2)),
                    Catch::Contains("rank 2"));
}

TEST_CASE("parameters that each rank has alone go back to their ranks") {
  const SceneCheckpoint checkpoint(scene_of_experts());
  const Manifest source = read_all(fairscale_fsdp_driver(), checkpoint.place());
  const WrittenCheckpoint written(fairscale_fsdp_driver(), source, *checkpoint.directory, ranks(3));
  const Manifest raw =
      read_all(torch_save_driver(), {written.directory.get(), "rank_2.pt", "rank_2.pt"});
  CHECK(floats_of(raw, *written.directory, "weights.expert.flat_param_0") ==
        std::vector<float>{2, 8});
  const Manifest again = read_all(fairscale_fsdp_driver(), written.place());
  CHECK(content(again, *written.directory) == content(source, *checkpoint.directory));
}

TEST_CASE("shared parameters are stored once for any ranks, and the pairs are kept") {
  Scene scene{.wrappers = {{.path = "", .parameters = {{"embed", {5, 3}}, {"b", {2}}}},
                           {.path = "layer", .parameters = {{"up", {4}}}}},
              .world_size = 3};
  scene.wrappers[0].shared = {{"embed", "decoder"}};
  scene.wrappers[1].shared = {{"up", "down"}};
  const SceneCheckpoint checkpoint(scene);
  const Manifest source = read_all(fairscale_fsdp_driver(), checkpoint.place());
  for (const std::int64_t to : kRanks) {
    INFO("to " << to);
    const WrittenCheckpoint written(fairscale_fsdp_driver(), source, *checkpoint.directory,
                                    ranks(to));
    const Value root = root_of(written, "rank_0.pt");
    const ValueList& wrappers = root.find("meta")->find("param_metadata")->as_list();
    REQUIRE(wrappers.size() == 2);
    for (std::size_t w = 0; w < 2; ++w) {
      const Value& pair = wrappers[w].find("shared_param_info")->as_list().at(0);
      CHECK(pair.as_list()[0].as_string() == scene.wrappers[w].shared[0].first);
      CHECK(pair.as_list()[1].as_string() == scene.wrappers[w].shared[0].second);
      const Value& info = wrappers[w].find("params")->as_dict().at(0).second;
      CHECK(info.find("names")->as_list().size() == scene.wrappers[w].parameters.size());
    }
    const Manifest again = read_all(fairscale_fsdp_driver(), written.place());
    CHECK(scene_difference(scene, again, *written.directory) == "");
  }
}

TEST_CASE("a renamed parameter stays where it was in its flat parameter") {
  MemoryFileSystem fs;
  ConvertOptions options = convert_options(load_sample(fs, "fairscale/single_flat_w2"), "/out", 4);
  options.names.renames = {{"layers.0.*", "first.*"}};
  options.verify = true;
  const ConvertReport report = convert(fs, options);
  CHECK(report.verify_findings == std::vector<std::string>{});
  CHECK(report.published);
}

TEST_CASE("a wrapper that no rank shares goes whole to every rank of another number of them") {
  Scene scene{.wrappers = {{.path = "", .parameters = {{"w", {5}}}},
                           {.path = "expert", .parameters = {{"e", {2, 3}}}, .no_broadcast = true}},
              .world_size = 3};
  const SceneCheckpoint checkpoint(scene);
  const Manifest source = read_all(fairscale_fsdp_driver(), checkpoint.place());
  for (const std::int64_t to : {1, 2, 4}) {
    INFO("to " << to);
    const WrittenCheckpoint written(fairscale_fsdp_driver(), source, *checkpoint.directory,
                                    ranks(to));
    for (std::int64_t rank = 0; rank < to; ++rank) {
      const std::string file = fmt::format("rank_{}.pt", rank);
      const Manifest raw = read_all(torch_save_driver(), {written.directory.get(), file, file});
      for (const std::string name : {"weights.expert.flat_param_0", "optim.state.1.exp_avg"})
        CHECK(floats_of(raw, *written.directory, name).size() == 6);
      const Value meta = *root_of(written, file).find("meta");
      CHECK(
          meta.find("param_metadata")->as_list().at(1).find("no_broadcast_optim_state")->as_bool());
    }
    const Manifest again = read_all(fairscale_fsdp_driver(), written.place());
    CHECK(scene_difference(scene, again, *written.directory) == "");
  }
}

TEST_CASE("a DCP becomes one flat parameter at the root and comes back the same") {
  for (const std::string name : {"dcp/fsdp2_w4", "dcp/fsdp2_w2"}) {
    const SampleCase sample(name);
    const Manifest source = open_with_kinds(torch_dcp_driver(), sample.place());
    for (const std::int64_t to : {1, 3, 16}) {
      INFO(name << " to " << to);
      const WrittenCheckpoint written(fairscale_fsdp_driver(), source, *sample.directory,
                                      ranks(to));
      const Manifest there = read_all(fairscale_fsdp_driver(), written.place());
      CHECK(content_of(there, *written.directory) == content_of(source, *sample.directory));
      const WrittenCheckpoint back(torch_dcp_driver(), there, *written.directory, ranks(2));
      const Manifest again = read_all(torch_dcp_driver(), back.place());
      CHECK(content_of(again, *back.directory) == content_of(source, *sample.directory));
    }
  }
}

TEST_CASE("steps whose values are known are numbers in the file, and tensors again for a reader") {
  const SampleCase sample("dcp/fsdp2_w4");
  const Manifest source = open_with_kinds(torch_dcp_driver(), sample.place());
  TargetRequest request = ranks(3);
  for (std::uint32_t i = 0; i < source.tensors.size(); ++i)
    if (source.tensors[i].name.ends_with(".step")) {
      float step = 0;
      TensorReader(source, *sample.directory, {})
          .read(i, 0, 1, std::as_writable_bytes(std::span(&step, 1)));
      request.steps.emplace_back(i, step);
    }
  REQUIRE_FALSE(request.steps.empty());
  const WrittenCheckpoint written(fairscale_fsdp_driver(), source, *sample.directory, request);
  const Value gathered = root_of(written, "optim.pt");
  for (const auto& [id, state] : gathered.find("state")->as_dict())
    CHECK(state.find("step")->kind() == Value::Kind::kFloat);
  const Manifest again = read_all(fairscale_fsdp_driver(), written.place());
  CHECK(content_of(again, *written.directory) == content_of(source, *sample.directory));
}

TEST_CASE("through another format and back everything is equal, the ids' maps too") {
  for (const std::string name : {"fairscale/nested_flat_w2", "fairscale/nested_unflat_w2"}) {
    const SampleCase sample(name);
    const Manifest source = open_with_kinds(fairscale_fsdp_driver(), sample.place());
    const WrittenCheckpoint there(torch_save_driver(), source, *sample.directory);
    const Manifest middle =
        open_with_kinds(torch_save_driver(), {there.directory.get(), "checkpoint.pt", "middle"});
    const WrittenCheckpoint back(fairscale_fsdp_driver(), middle, *there.directory, ranks(4));
    const Manifest again = read_all(fairscale_fsdp_driver(), back.place());
    CHECK(content_of(again, *back.directory) == content_of(middle, *there.directory));
    CHECK(values_of(again, *back.directory) == values_of(middle, *there.directory));
    const Value root = root_of(back, "rank_0.pt");
    CHECK(root.find("meta")->find("buffer_names")->as_list().size() == 2);
  }
}

TEST_CASE("optimizers keyed by id get names and a gathered file") {
  const SampleCase sample("torchsave/adamw_zip");
  const Place place{sample.directory.get(), sample.directory->list()[0].name, "adamw"};
  const Manifest source = open_with_kinds(torch_save_driver(), place);
  const WrittenCheckpoint written(fairscale_fsdp_driver(), source, *sample.directory, ranks(3));
  REQUIRE(written.files.contains("optim.pt"));
  const Value gathered = root_of(written, "optim.pt");
  CHECK(gathered.find("param_id_map"));
  CHECK(gathered.find("uncollected_local_ids")->as_list().empty());
  CHECK(gathered.find("param_groups")->as_list().size() == 2);
  std::int64_t last = -1;
  for (const auto& [id, state] : gathered.find("state")->as_dict()) {
    CHECK(id.as_int() > last);
    last = id.as_int();
    CHECK_FALSE(state.find("step")->is_tensor());
  }
  const Manifest there = read_all(fairscale_fsdp_driver(), written.place());
  std::size_t states = 0;
  for (const StateEntry& entry : there.state.entries) states += entry.name.ends_with(".exp_avg");
  CHECK(states == gathered.find("state")->as_dict().size());
}

TEST_CASE("a flat parameter has one dtype, and the mix is named") {
  RankArchive archive;
  const Value root = dict(
      {{"model", dict({{"a", archive.tensor({2}, {1, 2})}, {"b", archive.half({2}, {3, 4})}})}});
  MemoryFileSystem fs;
  fs.write_file("/c/x.pt", archive.render(root));
  const auto directory = fs.open_directory("/c");
  const Manifest source = open_with_kinds(torch_save_driver(), {directory.get(), "x.pt", "x.pt"});
  try {
    fairscale_fsdp_driver().output_plan(source, ranks(2));
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == Code::kUnsupported);
    CHECK_THAT(error.what(),
               Catch::Contains("\"a\" is float32") && Catch::Contains("\"b\" is bfloat16"));
  }
}

TEST_CASE("what FairScale's files cannot hold is refused before a byte is written") {
  const SampleCase sample("fairscale/single_flat_w2");
  const Manifest source = read_all(fairscale_fsdp_driver(), sample.place());
  TargetRequest request = ranks(2);
  request.mesh = Mesh::parse("dp=2,tp=2");
  CHECK_THROWS_WITH(fairscale_fsdp_driver().output_plan(source, request),
                    Catch::Contains("one dimension"));
  request = ranks(2);
  request.replicate = {"*.bias"};
  CHECK_THROWS_AS(fairscale_fsdp_driver().output_plan(source, request), Error);
  Manifest nothing;
  CHECK_THROWS_WITH(fairscale_fsdp_driver().output_plan(nothing, ranks(1)),
                    Catch::Contains("none here"));
  RankArchive archive;
  const Value bare = archive.tensor({2}, {1, 2});
  MemoryFileSystem fs;
  fs.write_file("/c/x.pt", archive.render(bare));
  const auto directory = fs.open_directory("/c");
  const Manifest unnamed = open_with_kinds(torch_save_driver(), {directory.get(), "x.pt", "x.pt"});
  CHECK_THROWS_WITH(fairscale_fsdp_driver().output_plan(unnamed, ranks(2)),
                    Catch::Contains("by name, and one has none"));
}

}  // namespace fairscale_write_test
