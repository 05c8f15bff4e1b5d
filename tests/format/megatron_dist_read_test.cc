// Folders of Megatron-core's dist_checkpointing: samples by their oracle; flattened ranges and
// other forms no sample has are layouts written by a script.
#include <tessera/format/megatron_dist.h>
#include <tessera/format/registry.h>
#include <tessera/format/torch_dcp.h>
#include <tessera/state/optim_state.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>

#include "lib/format/torch_dcp/regrouped_chunk.h"
#include "tests/format/megatron_dist_fixture.h"

namespace tessera::megatron_dist_read_test {
namespace {

using testing::BuiltMetadata;
using testing::DistFolder;
using testing::Numbers;

std::vector<std::string> dist_samples() {
  std::vector<std::string> names;
  for (const std::string& name : testing::sample_names("megatron"))
    if (name.find("torch_dist") != std::string::npos) names.push_back(name);
  return names;
}

/// mcore_data with one tensor's true shape.
std::function<void(PickleEmitter&)> megatron_data(std::string name, Numbers shape) {
  return [name = std::move(name), shape = std::move(shape)](PickleEmitter& out) {
    out.empty_dict();
    out.mark();
    out.string("plain");
    out.empty_dict();
    out.string(name);
    out.empty_dict();
    out.mark();
    out.string("nd_reformulated_orig_global_shape");
    out.mark();
    for (const std::int64_t n : shape) out.integer(n);
    out.tuple();
    out.set_items();
    out.set_items();
  };
}

}  // namespace

TEST_CASE("torch_dist samples read exactly and are detected") {
  REQUIRE(dist_samples().size() >= 3);
  for (const std::string& name : dist_samples()) {
    CAPTURE(name);
    const testing::SampleCase sample(name, "checkpoint/iter_0000100");
    const Detection detection = detect_format(sample.place());
    CHECK(detection.driver == &megatron_dist_driver());
    const Manifest manifest = testing::read_all(megatron_dist_driver(), sample.place());
    CHECK(testing::content_of(manifest, *sample.directory) ==
          testing::expected_content(sample.expected));
    const auto values = testing::values_of(manifest, *sample.directory);
    for (const auto& [key, value] : testing::expected_values(sample.expected)) {
      CAPTURE(key);
      REQUIRE(values.contains(key));
      CHECK(values.at(key) == value);
    }
    CHECK(manifest.world_size == sample.expected.find("world_size")->as_int());
  }
}

TEST_CASE("objects of ranks are values under their own keys") {
  const testing::SampleCase sample("megatron/torch_dist_tp2_dp1", "checkpoint/iter_0000100");
  const Manifest manifest = testing::read_all(megatron_dist_driver(), sample.place());
  const auto values = testing::values_of(manifest, *sample.directory);
  CHECK(values.at("rng_state/shard_0_2") == R"([[{"seed":5}]])");
  CHECK(values.at("rng_state/shard_1_2") == R"([[{"seed":6}]])");
}

TEST_CASE("a common state with an optimizer's groups is entered there and nowhere else") {
  DistFolder folder;
  folder.config(testing::kTorchDistConfig);
  BuiltMetadata metadata;
  metadata.tensors = {{"w", "float32", {2}, {{{0}, {2}}}}};
  metadata.items = {testing::dist_item("w", Numbers{0})};
  folder.data(metadata, {testing::tensor_item({2}, 1)});
  const Value groups =
      Value::list({testing::dict({{"lr", Value::real(0.5)}, {"step", Value::integer(3)}})});
  folder.common(testing::dict(
      {{"iteration", Value::integer(7)},
       {"scheduler", testing::dict({{"num_steps", Value::integer(9)}})},
       {"optimizer",
        testing::dict({{"optimizer", testing::dict({{"param_groups", groups}})},
                       {"grad_scaler", testing::dict({{"scale", Value::real(2)}})}})}}));
  const Manifest manifest = folder.read();
  const auto values = testing::values_of(manifest, *folder.directory);
  CHECK(values.at("iteration") == "7");
  CHECK(values.at("scheduler") == R"({"num_steps":9})");
  CHECK(values.at("optimizer.optimizer.param_groups.0.lr") == "0.5");
  CHECK(values.at("optimizer.grad_scaler.scale") == "2");
}

TEST_CASE("state by leaf and groups of the wrapped optimizer are one optimizer") {
  DistFolder folder;
  folder.config(testing::kTorchDistConfig);
  BuiltMetadata metadata;
  metadata.tensors = {{"w", "float32", {2}, {{{0}, {2}}}},
                      {"optimizer.state.exp_avg.w", "float32", {2}, {{{0}, {2}}}}};
  metadata.items = {testing::dist_item("w", Numbers{0}),
                    testing::dist_item("optimizer.state.exp_avg.w", Numbers{0})};
  folder.data(metadata, {testing::tensor_item({2}, 1), testing::tensor_item({2}, 5)});
  const Value groups = Value::list({testing::dict({{"lr", Value::real(0.5)}})});
  folder.common(testing::dict(
      {{"optimizer", testing::dict({{"optimizer", testing::dict({{"param_groups", groups}})}})}}));
  const Manifest manifest = folder.read();
  const auto states = canonical_optim_states(manifest, find_roles(manifest.state));
  REQUIRE(states.size() == 1);
  CHECK(states[0].root == "optimizer");
  CHECK(states[0].dialect == OptimDialect::kLeafFirst);
  CHECK(states[0].find("w")->find("exp_avg"));
  REQUIRE(states[0].groups.size() == 1);
  CHECK(*states[0].groups[0].find("lr") == Value::real(0.5));
}

TEST_CASE("the common state may lie in an object of the DCP files") {
  for (const bool boxed : {false, true}) {
    DistFolder folder;
    folder.config(testing::kTorchDistConfig);
    BuiltMetadata metadata;
    metadata.tensors = {{"w", "float32", {2}, {{{0}, {2}}}}};
    metadata.values = {"common_state/shard_0_1"};
    metadata.items = {testing::dist_item("w", Numbers{0}),
                      testing::dist_item("common_state/shard_0_1", std::nullopt)};
    const Value common = testing::dict({{"iteration", Value::integer(7)}});
    folder.data(metadata, {testing::tensor_item({2}, 1),
                           testing::value_item(boxed ? Value::list({common}) : common)});
    const Manifest manifest = folder.read();
    CHECK(testing::values_of(manifest, *folder.directory) ==
          std::map<std::string, std::string>{{"iteration", "7"}});
  }
}

TEST_CASE("a tensor in the common state is a tensor of its own") {
  DistFolder folder;
  folder.config(testing::kTorchDistConfig);
  BuiltMetadata metadata;
  metadata.tensors = {{"w", "float32", {2}, {{{0}, {2}}}}};
  metadata.items = {testing::dist_item("w", Numbers{0})};
  folder.data(metadata, {testing::tensor_item({2}, 1)});
  testing::RankArchive archive;
  const Value scale = archive.tensor(Shape{3}, {4, 5, 6});
  folder.fs.write_file(
      "/c/common.pt",
      archive.render(testing::dict({{"scaler", testing::dict({{"scale", scale}})}})));
  const Manifest manifest = folder.read();
  CHECK(folder.floats(manifest, "scaler.scale") == std::vector<float>{4, 5, 6});
}

TEST_CASE("without metadata.json the save was interrupted") {
  DistFolder folder;
  BuiltMetadata metadata;
  metadata.tensors = {{"w", "float32", {2}, {{{0}, {2}}}}};
  metadata.items = {testing::dist_item("w", Numbers{0})};
  folder.data(metadata, {testing::tensor_item({2}, 1)});
  folder.common(testing::dict({{"iteration", Value::integer(7)}}));
  CHECK(detect_format(folder.place()).driver == &megatron_dist_driver());
  std::string message;
  CHECK(folder.failure(message) == Code::kCorrupt);
  CHECK_THAT(message, Catch::Contains("metadata.json") && Catch::Contains("interrupted"));
}

TEST_CASE("without its common state a checkpoint is incomplete") {
  DistFolder folder;
  folder.config(testing::kTorchDistConfig);
  BuiltMetadata metadata;
  metadata.tensors = {{"w", "float32", {2}, {{{0}, {2}}}}};
  metadata.items = {testing::dist_item("w", Numbers{0})};
  folder.data(metadata, {testing::tensor_item({2}, 1)});
  std::string message;
  CHECK(folder.failure(message) == Code::kCorrupt);
  CHECK_THAT(message, Catch::Contains("common.pt"));
}

TEST_CASE("a backend that is not known is refused by name") {
  DistFolder folder;
  folder.config(R"({"sharded_backend": "tape", "sharded_backend_version": 1})");
  std::string message;
  CHECK(folder.failure(message) == Code::kUnsupported);
  CHECK_THAT(message, Catch::Contains("\"tape\""));
}

TEST_CASE("somebody else's metadata.json leaves a DCP a DCP") {
  DistFolder folder;
  folder.config(R"({"tensors": {}})");
  BuiltMetadata metadata;
  metadata.tensors = {{"w", "float32", {2}, {{{0}, {2}}}}};
  metadata.items = {testing::dist_item("w", Numbers{0})};
  folder.data(metadata, {testing::tensor_item({2}, 1)});
  CHECK(detect_format(folder.place()).driver == &torch_dcp_driver());
}

TEST_CASE("flattened ranges are put back where they belong") {
  // [4,6] in cells [2,3]: four cells of six elements; each cut in two ranges of 4 and 2.
  DistFolder folder;
  folder.config(testing::kTorchDistConfig);
  folder.common(testing::dict({}));
  BuiltMetadata metadata;
  metadata.root_module = "megatron.core.dist_checkpointing.strategies.torch";
  metadata.root_class = "MCoreMetadata";
  metadata.extra_name = "mcore_data";
  metadata.extra = megatron_data("optimizer.state.exp_avg.w", {4, 6});
  testing::BuiltTensor tensor{"optimizer.state.exp_avg.w", "float32", {2, 2, 6}, {}};
  std::vector<Bytes> items;
  std::vector<float> expected(24);
  for (std::int64_t i = 0; i < 2; ++i) {
    for (std::int64_t j = 0; j < 2; ++j) {
      for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>{0, 4}, {4, 6}}) {
        tensor.chunks.push_back({{i, j, begin}, {1, 1, end - begin}});
        metadata.items.push_back(testing::dist_item(tensor.name, Numbers{i, j, begin}));
        const auto first = static_cast<float>(100 * i + 10 * j + begin);
        items.push_back(testing::tensor_item({1, 1, end - begin}, first));
        for (std::int64_t k = begin; k < end; ++k)
          expected[static_cast<std::size_t>((2 * i + k / 3) * 6 + 3 * j + k % 3)] =
              first + static_cast<float>(k - begin);
      }
    }
  }
  metadata.tensors = {tensor};
  folder.data(metadata, items);
  const Manifest manifest = folder.read();
  CHECK(manifest.find(tensor.name)->spec.shape == Shape{4, 6});
  CHECK(folder.floats(manifest, tensor.name) == expected);
}

TEST_CASE("a regrouping that does not belong to its shape is refused") {
  const Box piece{{0, 0, 0}, Shape{1, 1, 6}};
  CHECK(dcp::regrouped_chunk({2, 2, 6}, {4, 6}, piece) == Chunk{Box{{0, 0}, Shape{2, 3}}, 0, 6});
  for (const Shape& whole : {Shape{4, 5}, Shape{4}, Shape{8, 6}, Shape{5, 6}}) {
    CAPTURE(whole.to_string());
    CHECK(test::code_of([&] { dcp::regrouped_chunk({2, 2, 6}, whole, piece); }) == Code::kCorrupt);
  }
  CHECK(test::code_of([&] {
          dcp::regrouped_chunk({2, 2, 6}, {4, 6}, {{0, 0, 5}, Shape{1, 1, 2}});
        }) == Code::kCorrupt);
  CHECK(test::code_of([&] {
          dcp::regrouped_chunk({2, 2, 6}, {4, 6}, {{0, 0, 0}, Shape{2, 1, 2}});
        }) == Code::kUnsupported);
  CHECK(test::code_of([&] {
          dcp::regrouped_chunk({0, 2, 6}, {4, 6}, {{0, 0, 0}, Shape{0, 1, 2}});
        }) == Code::kCorrupt);
}

}  // namespace tessera::megatron_dist_read_test
