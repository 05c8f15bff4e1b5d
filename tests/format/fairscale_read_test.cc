// FairScale's files read as one state: the samples by FairScale's own consolidation and by the
// ranks' raw shards, and what users and releases do differently.
#include <tessera/base/error.h>
#include <tessera/format/registry.h>
#include <tessera/format/torch_save.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "tests/format/fairscale_fixture.h"
#include "tests/support/note_text.h"
#include "tests/support/sample_case.h"

namespace fairscale_read_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

const std::vector<SceneWrapper> kNested = {
    {.path = "", .parameters = {{"embed.weight", {11, 6}}, {"head.bias", {5}}}},
    {.path = "layers.0", .parameters = {{"up.weight", {3, 7}}, {"gain", {}}, {"none", {0, 4}}}},
    {.path = "layers.1", .parameters = {{"w", {2}}}},
};

std::string failure(const Scene& scene, const std::set<std::int64_t>& without = {}) {
  const SceneCheckpoint checkpoint(scene, without);
  try {
    read_all(fairscale_fsdp_driver(), checkpoint.place());
  } catch (const Error& error) {
    return error.status().to_string();
  }
  return "";
}

void check_reads(const Scene& scene) {
  const SceneCheckpoint checkpoint(scene);
  const Manifest manifest = read_all(fairscale_fsdp_driver(), checkpoint.place());
  CHECK(scene_difference(scene, manifest, *checkpoint.directory, !scene.optimizer_key.empty()) ==
        "");
  CHECK(manifest.world_size == scene.world_size);
}

/// Unpadded concatenation of the ranks' raw state tensors, by the plain torch.save reader.
std::vector<float> raw_state(const SampleCase& sample, int ranks, int id, const std::string& leaf,
                             std::int64_t numel) {
  std::vector<float> out;
  for (int r = 0; r < ranks; ++r) {
    const Place place{sample.directory.get(), fmt::format("rank_{}.pt", r), "rank"};
    const Manifest raw = read_all(torch_save_driver(), place);
    for (const float value :
         floats_of(raw, *sample.directory, fmt::format("optim.state.{}.{}", id, leaf)))
      if (static_cast<std::int64_t>(out.size()) < numel) out.push_back(value);
  }
  return out;
}

}  // namespace

TEST_CASE("FairScale samples read as its own consolidation, states as the ranks' shards") {
  for (const std::string& name : sample_names("fairscale")) {
    INFO(name);
    const SampleCase sample(name);
    REQUIRE(detect_format(sample.place()).driver == &fairscale_fsdp_driver());
    const Manifest manifest = read_all(fairscale_fsdp_driver(), sample.place());
    const auto got = content_of(manifest, *sample.directory);
    const auto want = expected_content(sample.expected);
    CHECK(got.size() == want.size());
    for (const auto& [key, content] : want) {
      INFO(key);
      REQUIRE(got.contains(key));
      // FairScale's gather reuses one receive buffer, so that on CPU exp_avg shows exp_avg_sq: such
      // leaves are held against the shards below.
      const auto aliased = want.find(key + "_sq");
      if (aliased == want.end() || aliased->second != content) CHECK(got.at(key) == content);
    }
    const auto values = values_of(manifest, *sample.directory);
    for (const auto& [key, value] : expected_values(sample.expected)) {
      INFO(key);
      CHECK((values.contains(key) && values.at(key) == value));
    }
  }
}

TEST_CASE("gathered state is the ranks' own shards end to end") {
  struct Buffer {
    std::vector<std::string> names;
  };
  for (const auto& [name, ranks] : std::vector<std::pair<std::string, int>>{
           {"fairscale/nested_flat_w2", 2}, {"fairscale/single_flat_w4", 4}}) {
    INFO(name);
    const SampleCase sample(name);
    const Manifest manifest = read_all(fairscale_fsdp_driver(), sample.place());
    std::vector<std::vector<std::string>> buffers(1);
    for (const StoredTensor& tensor : manifest.tensors)
      if (tensor.kind == TensorKind::kParam) {
        const std::string fqn = tensor.name.substr(6);
        const bool layered = ranks == 2 && fqn.starts_with("layers.");
        const std::size_t buffer = layered ? static_cast<std::size_t>(fqn[7] - '0') + 1 : 0;
        buffers.resize(std::max(buffers.size(), buffer + 1));
        buffers[buffer].push_back(fqn);
      }
    for (std::size_t b = 0; b < buffers.size(); ++b)
      for (const std::string leaf : {"exp_avg", "exp_avg_sq"}) {
        std::vector<float> all;
        for (const std::string& fqn : buffers[b])
          for (const float value :
               floats_of(manifest, *sample.directory, "optim.state." + fqn + "." + leaf))
            all.push_back(value);
        CHECK(all == raw_state(sample, ranks, static_cast<int>(b), leaf,
                               static_cast<std::int64_t>(all.size())));
      }
  }
}

TEST_CASE("one file is a checkpoint of its own when it holds everything") {
  const Scene one{.wrappers = kNested, .world_size = 1};
  const SceneCheckpoint whole(one);
  const Place file{whole.directory.get(), "rank_0.pt", "rank_0.pt"};
  CHECK(detect_format(file).driver == &fairscale_fsdp_driver());
  const Manifest manifest = read_all(fairscale_fsdp_driver(), file);
  CHECK(scene_difference(one, manifest, *whole.directory) == "");
  const Scene two{.wrappers = kNested, .world_size = 2};
  const SceneCheckpoint parts(two);
  CHECK(detect_format({parts.directory.get(), "rank_0.pt", "rank_0.pt"}).driver ==
        &torch_save_driver());
  CHECK(detect_format(parts.place()).driver == &fairscale_fsdp_driver());
}

TEST_CASE("every world size reads, also with more ranks than elements") {
  for (const std::int64_t ranks : {1, 2, 3, 4, 7, 8, 12, 16}) {
    INFO(ranks);
    check_reads({.wrappers = kNested, .world_size = ranks});
  }
}

TEST_CASE("padding never surfaces, whatever it holds") {
  Scene scene{.wrappers = kNested, .world_size = 7};
  scene.padding = std::numeric_limits<float>::quiet_NaN();
  check_reads(scene);
  const SceneCheckpoint checkpoint(scene);
  const Manifest manifest = fairscale_fsdp_driver().manifest(checkpoint.place(), tolerant());
  const auto noted = std::ranges::count(manifest.notes, "CK065", note_code<Note>);
  CHECK(noted > 0);
  scene.padding = 0;
  const SceneCheckpoint clean(scene);
  const Manifest quiet = fairscale_fsdp_driver().manifest(clean.place(), tolerant());
  CHECK(std::ranges::count(quiet.notes, "CK065", note_code<Note>) == 0);
}

TEST_CASE("parts are found by structure under any key") {
  Scene scene{.wrappers = kNested, .world_size = 3};
  scene.weights_key = "model";
  scene.metadata_key = "shard_metadata";
  scene.optimizer_key = "last_optimizer_state";
  scene.file = "checkpoint_7_100-shard{}.pt";
  check_reads(scene);
}

TEST_CASE("early releases name one flat_param and describe wrappers with lists") {
  Scene scene{.wrappers = kNested, .world_size = 3};
  scene.flat_name = "flat_param";
  check_reads(scene);
  scene.older_metadata = true;
  check_reads(scene);
}

TEST_CASE("segments that wrappers add to names are taken out") {
  Scene scene{.wrappers = kNested, .world_size = 2};
  scene.segment = "_fsdp_wrapped_module._fpw_module.";
  check_reads(scene);
}

TEST_CASE("parameters that are not flattened keep their shapes, and their state goes with them") {
  Scene scene{.wrappers = kNested, .world_size = 3};
  for (SceneWrapper& wrapper : scene.wrappers) wrapper.flat = false;
  for (const std::int64_t ranks : {1, 2, 3, 8}) {
    scene.world_size = ranks;
    const SceneCheckpoint checkpoint(scene);
    const Manifest manifest = read_all(fairscale_fsdp_driver(), checkpoint.place());
    CHECK(scene_difference(scene, manifest, *checkpoint.directory, false) == "");
    const StateEntry* state = manifest.state.find("optim.state.layers.0.up.weight");
    REQUIRE(state);
    REQUIRE(state->value.find("exp_avg"));
    const std::uint32_t index = state->value.find("exp_avg")->tensor_index();
    CHECK(manifest.tensors[index].spec.shape == Shape{3, 7});
    std::vector<float> got(21);
    TensorReader(manifest, *checkpoint.directory, {})
        .read(index, 0, 21, std::as_writable_bytes(std::span(got)));
    for (std::int64_t i = 0; i < 21; ++i)
      CHECK(got[static_cast<std::size_t>(i)] == scene_value("layers.0.up.weight", "exp_avg", i));
    CHECK(*state->value.find("step") == Value::real(5));
  }
}

TEST_CASE("shared parameters of every wrapper appear under both names") {
  Scene scene{.wrappers = kNested, .world_size = 3};
  scene.wrappers[0].shared = {{"embed.weight", "decoder.weight"}};
  scene.wrappers[1].shared = {{"up.weight", "down.weight"}};
  check_reads(scene);
}

TEST_CASE("unused wrappers have no state, however many there are") {
  Scene scene{.wrappers = kNested, .world_size = 2};
  scene.wrappers[1].used = false;
  scene.wrappers[2].used = false;
  const SceneCheckpoint checkpoint(scene);
  const Manifest manifest = read_all(fairscale_fsdp_driver(), checkpoint.place());
  CHECK(scene_difference(scene, manifest, *checkpoint.directory) == "");
  const Value& map = manifest.state.find("optim.param_id_map")->value;
  CHECK(map.as_dict().size() == 6);
  CHECK(*map.find("0") == Value::integer(0));
  CHECK(map.find("5")->is_none());
}

TEST_CASE("states with no tensors, and other keys of the optimizer, are kept") {
  Scene scene{.wrappers = kNested, .world_size = 2, .leaves = {}};
  scene.edit = [](std::int64_t, ValueDict& root, RankArchive&) {
    ValueDict optimizer = root[2].second.as_dict();
    optimizer.emplace_back(text("loss_scale"), number(1024));
    root[2].second = Value::dict(std::move(optimizer));
    root.emplace_back(text("epoch"), number(3));
  };
  const SceneCheckpoint checkpoint(scene);
  const Manifest manifest = read_all(fairscale_fsdp_driver(), checkpoint.place());
  CHECK(scene_difference(scene, manifest, *checkpoint.directory) == "");
  CHECK(manifest.state.find("optim.loss_scale")->value == number(1024));
  CHECK(manifest.state.find("epoch")->value == number(3));
}

TEST_CASE("what ranks keep differently stays with its rank") {
  Scene scene{.wrappers = kNested, .world_size = 3};
  scene.edit = [](std::int64_t rank, ValueDict& root, RankArchive& archive) {
    root.emplace_back(text("seed"), number(rank));
    root.emplace_back(text("rng"), archive.tensor({2}, {1, static_cast<float>(rank)}));
    root.emplace_back(text("table"), archive.tensor({2}, {1, 2}));
  };
  const SceneCheckpoint checkpoint(scene);
  const Manifest manifest = read_all(fairscale_fsdp_driver(), checkpoint.place());
  CHECK(manifest.state.find("seed.rank_2")->value == number(2));
  CHECK(floats_of(manifest, *checkpoint.directory, "rng.rank_1") == std::vector<float>{1, 1});
  CHECK(floats_of(manifest, *checkpoint.directory, "table") == std::vector<float>{1, 2});
}

TEST_CASE("a wrapper that no rank shares is read from the first, others' parameters are kept") {
  Scene scene{.wrappers = kNested, .world_size = 3};
  scene.wrappers[2].no_broadcast = true;
  check_reads(scene);  // copies: nothing more to keep
  scene.edit = [](std::int64_t rank, ValueDict& root, RankArchive& archive) {
    ValueDict weights = root[0].second.as_dict();
    for (auto& [key, value] : weights)
      if (key.as_string() == "layers.1.flat_param_0" && rank > 0)
        value = archive.tensor({2}, {static_cast<float>(rank), 8});
    root[0].second = Value::ordered_dict(std::move(weights), Value());
  };
  const SceneCheckpoint checkpoint(scene);
  const Manifest manifest = read_all(fairscale_fsdp_driver(), checkpoint.place());
  CHECK(scene_difference(scene, manifest, *checkpoint.directory) == "");
  const StateEntry* own = manifest.state.find("no_broadcast.rank_2");
  REQUIRE(own);
  CHECK(own->value.find("weights")->find("layers.1.flat_param_0")->is_tensor());
}

TEST_CASE("a state dict that only rank 0 has, in full, needs no shards") {
  Scene scene{.wrappers = kNested, .world_size = 3, .optimizer_key = ""};
  scene.edit = [&scene](std::int64_t rank, ValueDict& root, RankArchive& archive) {
    ValueDict weights;
    if (rank == 0) {
      for (const SceneWrapper& wrapper : scene.wrappers)
        for (const SceneParameter& p : wrapper.parameters) {
          std::vector<float> values;
          const std::string fqn = scene.fqn(wrapper, p.name);
          for (std::int64_t i = 0; i < p.shape.numel(); ++i)
            values.push_back(scene_value(fqn, "", i));
          weights.emplace_back(text(fqn), archive.tensor(p.shape, values));
        }
      weights.emplace_back(text("count"), archive.tensor({2}, {1, 2}));
    }
    root[0].second = Value::dict(std::move(weights));
  };
  const SceneCheckpoint checkpoint(scene);
  const Manifest manifest = read_all(fairscale_fsdp_driver(), checkpoint.place());
  CHECK(scene_difference(scene, manifest, *checkpoint.directory, false) == "");
}

TEST_CASE("a missing rank is named, with its file and what is lost") {
  const Scene scene{.wrappers = kNested, .world_size = 4};
  CHECK(failure(scene, {2}).find("rank 2 is missing: rank_2.pt") != std::string::npos);
  const std::string first = failure(scene, {0});
  CHECK(first.find("rank_0.pt") != std::string::npos);
  const std::string last = failure(scene, {3});
  CHECK(last.find("missing: the shard of rank 3 (rank_3.pt)") != std::string::npos);
  CHECK(last.find("elements of \"head.bias\"") != std::string::npos);

  const SceneCheckpoint checkpoint(scene, {3});
  const Manifest manifest = fairscale_fsdp_driver().manifest(checkpoint.place(), tolerant());
  CHECK(std::ranges::count(manifest.notes, "CK024", note_code<Note>) > 0);
}

TEST_CASE("a lone rank's file gives no element a place unless its name says that it is the first") {
  const Scene scene{.wrappers = kNested, .world_size = 3};
  for (const int kept : {0, 1, 2}) {
    INFO("rank_" << kept << ".pt alone");
    std::set<std::int64_t> lost = {0, 1, 2};
    lost.erase(kept);
    const SceneCheckpoint checkpoint(scene, lost);
    const Manifest manifest = fairscale_fsdp_driver().manifest(checkpoint.place(), tolerant());
    const auto placed = std::ranges::count_if(manifest.tensors, [](const StoredTensor& tensor) {
      return tensor.name.view().starts_with("model.") && tensor.chunk_count > 0 &&
             !tensor.name.view().ends_with("count");  // a buffer, whole on each rank
    });
    CHECK((placed > 0) == (kept == 0));
    CHECK_THROWS_AS(fairscale_fsdp_driver().manifest(checkpoint.place(), {}), Error);
    if (kept > 0)
      CHECK(std::ranges::any_of(manifest.notes, [](const Note& note) {
        return note.message.find("nothing says of which rank") != std::string::npos;
      }));
  }
}

TEST_CASE("rank files that count from one are complete, or lack the first") {
  Scene scene{.wrappers = kNested, .world_size = 3};
  SceneCheckpoint checkpoint(scene);
  for (int r = 2; r >= 0; --r)
    checkpoint.fs.rename(fmt::format("/c/rank_{}.pt", r), fmt::format("/c/rank_{}.pt", r + 1));
  const Manifest manifest = read_all(fairscale_fsdp_driver(), checkpoint.place());
  CHECK(scene_difference(scene, manifest, *checkpoint.directory) == "");
}

TEST_CASE("files of two saves are told apart") {
  const Scene four{.wrappers = kNested, .world_size = 4};
  const Scene two{.wrappers = kNested, .world_size = 2};
  SceneCheckpoint mixed(four);
  mixed.fs.write_file("/c/rank_0.pt", SceneFiles(two).rank(0));
  mixed.fs.write_file("/c/rank_1.pt", SceneFiles(two).rank(1));
  CHECK_THROWS_WITH(fairscale_fsdp_driver().manifest(mixed.place(), {}),
                    Catch::Contains("different world sizes"));

  Scene other = four;
  other.wrappers[2].parameters[0].shape = {3};
  SceneCheckpoint models(four);
  models.fs.write_file("/c/rank_1.pt", SceneFiles(other).rank(1));
  CHECK_THROWS_WITH(fairscale_fsdp_driver().manifest(models.place(), {}),
                    Catch::Contains("describe different models"));

  Scene named = two;
  named.file = "old_{}.pt";
  SceneCheckpoint both(two);
  both.fs.write_file("/c/old_0.pt", SceneFiles(named).rank(0));
  both.fs.write_file("/c/old_1.pt", SceneFiles(named).rank(1));
  CHECK_THROWS_WITH(fairscale_fsdp_driver().manifest(both.place(), {}),
                    Catch::Contains("two checkpoints"));

  SceneCheckpoint twice(two);
  twice.fs.write_file("/c/rank_01.pt", SceneFiles(two).rank(1));
  CHECK_THROWS_WITH(fairscale_fsdp_driver().manifest(twice.place(), {}),
                    Catch::Contains("are both files of number 1"));
}

TEST_CASE("ranks that disagree about a step are refused") {
  Scene scene{.wrappers = kNested, .world_size = 2};
  scene.step = [](std::int64_t rank) { return 5.0f + static_cast<float>(rank); };
  CHECK(failure(scene).find("step 5 against 6") != std::string::npos);
}

TEST_CASE("numbers that contradict each other are refused") {
  const auto spoilt = [](std::string_view field, const Value& with) {
    Scene scene{.wrappers = kNested, .world_size = 2};
    scene.edit = [field, with](std::int64_t, ValueDict& root, RankArchive&) {
      ValueDict metadata = root[1].second.as_dict();
      ValueList wrappers = metadata[0].second.as_list();
      ValueDict wrapper = wrappers[0].as_dict();
      ValueDict params = wrapper[1].second.as_dict();
      ValueDict info = params[0].second.as_dict();
      for (auto& [key, value] : info)
        if (key.as_string() == field) value = with;
      params[0].second = Value::dict(info);
      wrapper[1].second = Value::dict(params);
      wrappers[0] = Value::dict(wrapper);
      metadata[0].second = Value::list(wrappers);
      root[1].second = Value::dict(metadata);
    };
    return failure(scene);
  };
  CHECK(spoilt("numels", Value::list({number(65), number(5)})).find("is said to have 65") !=
        std::string::npos);
  CHECK(spoilt("numels", Value::list({number(66)})).find("2 names, 2 shapes and 1 numels") !=
        std::string::npos);
  CHECK(spoilt("padding", number(-1)).find("padding\", found -1") != std::string::npos);
  CHECK(spoilt("padding", number(3)).find("without their padding") != std::string::npos);
  CHECK(spoilt("shapes", Value::list({Value::size({-11, 6}), Value::size({5})})) != "");
  CHECK(spoilt("shapes", Value::list({Value::size({std::numeric_limits<std::int64_t>::max(), 6}),
                                      Value::size({5})})) != "");
}

}  // namespace fairscale_read_test
