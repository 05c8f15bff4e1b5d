// Folders of Megatron-core's dist_checkpointing: samples by their oracle; flattened ranges, zarr
// and other forms no sample has are layouts written by a script.
#include <tessera/format/megatron_dist.h>
#include <tessera/format/registry.h>
#include <tessera/format/torch_dcp.h>
#include <tessera/reshard/tensor_reader.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>

#include "lib/format/torch_dcp/regrouped_chunk.h"
#include "tests/support/archive_gather.h"
#include "tests/support/dcp_builder.h"
#include "tests/support/rank_archive.h"
#include "tests/support/sample_case.h"
#include "tests/support/written_checkpoint.h"

namespace tessera {
namespace {

using testing::BuiltMetadata;
using testing::Numbers;

constexpr std::string_view kTorchDist =
    R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1})";
constexpr std::string_view kZarr = R"({"sharded_backend": "zarr", "sharded_backend_version": 1})";

std::vector<std::string> dist_samples() {
  std::vector<std::string> names;
  for (const std::string& name : testing::sample_names("megatron"))
    if (name.find("torch_dist") != std::string::npos) names.push_back(name);
  return names;
}

/// A folder in memory with the files every torch_dist save leaves.
struct Folder {
  MemoryFileSystem fs;
  std::unique_ptr<Directory> directory;

  Folder() { fs.make_directories("/c"); }
  void config(std::string_view text) { fs.write_file("/c/metadata.json", as_bytes(text)); }
  void common(const Value& value) { fs.write_file("/c/common.pt", testing::value_item(value)); }
  /// Items one after the other in __0_0.distcp.
  void data(BuiltMetadata& metadata, const std::vector<Bytes>& items) {
    Bytes file;
    for (std::size_t i = 0; i < items.size(); ++i) {
      metadata.items[i].offset = static_cast<std::int64_t>(file.size());
      metadata.items[i].length = static_cast<std::int64_t>(items[i].size());
      file.insert(file.end(), items[i].begin(), items[i].end());
    }
    fs.write_file("/c/__0_0.distcp", file);
    fs.write_file("/c/.metadata", testing::build_metadata(metadata));
  }
  Place place() {
    directory = fs.open_directory("/c");
    return {directory.get(), "", "c"};
  }
  Manifest read(const ReadOptions& options = {}) {
    return testing::read_all(megatron_dist_driver(), place(), options);
  }
  std::vector<float> floats(const Manifest& manifest, std::string_view name) {
    const auto index = static_cast<std::uint32_t>(manifest.find(name) - manifest.tensors.data());
    const std::int64_t numel = manifest.tensors[index].spec.shape.numel();
    Bytes bytes(static_cast<std::size_t>(numel) * 4);
    TensorReader(manifest, *directory, {}).read(index, 0, numel, bytes);
    std::vector<float> out(static_cast<std::size_t>(numel));
    std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
  }
  Code failure(std::string& message) {
    return test::code_of([&] { read(); }, &message);
  }
};

/// Where it lies is filled in by Folder::data().
testing::BuiltItem item(std::string name, std::optional<Numbers> origin) {
  testing::BuiltItem made;
  made.name = std::move(name);
  made.origin = std::move(origin);
  return made;
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

void write_floats(MemoryFileSystem& fs, const std::string& path, const std::vector<float>& values) {
  Bytes bytes(values.size() * 4);
  std::memcpy(bytes.data(), values.data(), bytes.size());
  fs.write_file(path, bytes);
}

std::string zarray(const std::string& shape, const std::string& chunks,
                   const std::string& more = R"("compressor":null,"filters":null,"order":"C")",
                   const std::string& dtype = "<f4") {
  return R"({"zarr_format":2,"shape":)" + shape + R"(,"chunks":)" + chunks + R"(,"dtype":")" +
         dtype + R"(","fill_value":0,)" + more + "}";
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
  Folder folder;
  folder.config(kTorchDist);
  BuiltMetadata metadata;
  metadata.tensors = {{"w", "float32", {2}, {{{0}, {2}}}}};
  metadata.items = {item("w", Numbers{0})};
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

TEST_CASE("the common state may lie in an object of the DCP files") {
  for (const bool boxed : {false, true}) {
    Folder folder;
    folder.config(kTorchDist);
    BuiltMetadata metadata;
    metadata.tensors = {{"w", "float32", {2}, {{{0}, {2}}}}};
    metadata.values = {"common_state/shard_0_1"};
    metadata.items = {item("w", Numbers{0}), item("common_state/shard_0_1", std::nullopt)};
    const Value common = testing::dict({{"iteration", Value::integer(7)}});
    folder.data(metadata, {testing::tensor_item({2}, 1),
                           testing::value_item(boxed ? Value::list({common}) : common)});
    const Manifest manifest = folder.read();
    CHECK(testing::values_of(manifest, *folder.directory) ==
          std::map<std::string, std::string>{{"iteration", "7"}});
  }
}

TEST_CASE("a tensor in the common state is a tensor of its own") {
  Folder folder;
  folder.config(kTorchDist);
  BuiltMetadata metadata;
  metadata.tensors = {{"w", "float32", {2}, {{{0}, {2}}}}};
  metadata.items = {item("w", Numbers{0})};
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
  Folder folder;
  BuiltMetadata metadata;
  metadata.tensors = {{"w", "float32", {2}, {{{0}, {2}}}}};
  metadata.items = {item("w", Numbers{0})};
  folder.data(metadata, {testing::tensor_item({2}, 1)});
  folder.common(testing::dict({{"iteration", Value::integer(7)}}));
  CHECK(detect_format(folder.place()).driver == &megatron_dist_driver());
  std::string message;
  CHECK(folder.failure(message) == Code::kCorrupt);
  CHECK_THAT(message, Catch::Contains("metadata.json") && Catch::Contains("interrupted"));
}

TEST_CASE("without its common state a checkpoint is incomplete") {
  Folder folder;
  folder.config(kTorchDist);
  BuiltMetadata metadata;
  metadata.tensors = {{"w", "float32", {2}, {{{0}, {2}}}}};
  metadata.items = {item("w", Numbers{0})};
  folder.data(metadata, {testing::tensor_item({2}, 1)});
  std::string message;
  CHECK(folder.failure(message) == Code::kCorrupt);
  CHECK_THAT(message, Catch::Contains("common.pt"));
}

TEST_CASE("a backend that is not known is refused by name") {
  Folder folder;
  folder.config(R"({"sharded_backend": "tape", "sharded_backend_version": 1})");
  std::string message;
  CHECK(folder.failure(message) == Code::kUnsupported);
  CHECK_THAT(message, Catch::Contains("\"tape\""));
}

TEST_CASE("somebody else's metadata.json leaves a DCP a DCP") {
  Folder folder;
  folder.config(R"({"tensors": {}})");
  BuiltMetadata metadata;
  metadata.tensors = {{"w", "float32", {2}, {{{0}, {2}}}}};
  metadata.items = {item("w", Numbers{0})};
  folder.data(metadata, {testing::tensor_item({2}, 1)});
  CHECK(detect_format(folder.place()).driver == &torch_dcp_driver());
}

TEST_CASE("flattened ranges are put back where they belong") {
  // [4,6] in cells [2,3]: four cells of six elements; each cut in two ranges of 4 and 2.
  Folder folder;
  folder.config(kTorchDist);
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
        metadata.items.push_back(item(tensor.name, Numbers{i, j, begin}));
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

TEST_CASE("buckets of the distributed optimizer are listed as they are") {
  Folder folder;
  folder.config(kTorchDist);
  folder.common(testing::dict({}));
  const std::string bucket =
      "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_(torch.bfloat16, torch.float32)"
      ".bucket_idx_0.";
  BuiltMetadata metadata;
  std::vector<Bytes> items;
  // Parameters of 7, 5 and 3 elements: 135 with gaps; two ranks' pieces.
  for (const std::string leaf : {"param", "exp_avg"}) {
    metadata.tensors.push_back({bucket + leaf, "float32", {135}, {{{0}, {128}}, {{128}, {7}}}});
    metadata.items.push_back(item(bucket + leaf, Numbers{0}));
    metadata.items.push_back(item(bucket + leaf, Numbers{128}));
    items.push_back(testing::tensor_item({128}, 0));
    items.push_back(testing::tensor_item({7}, 128));
  }
  folder.data(metadata, items);
  const Manifest manifest = folder.read();
  CHECK(manifest.find(bucket + "param")->kind == TensorKind::kMaster);
  CHECK(manifest.find(bucket + "exp_avg")->kind == TensorKind::kOptim);
  CHECK(folder.floats(manifest, bucket + "exp_avg")[134] == 134);
  CHECK(std::ranges::any_of(manifest.notes, [](const Note& n) { return n.code == "CK091"; }));
}

TEST_CASE("zarr arrays and objects read as they were written") {
  Folder folder;
  folder.config(kZarr);
  folder.common(testing::dict({{"iteration", Value::integer(7)}}));
  folder.fs.write_file("/c/w/.zarray", as_bytes(zarray("[3,4]", "[2,2]")));
  // Edges are as large as other chunks: what lies beyond the array is never read.
  write_floats(folder.fs, "/c/w/0.0", {0, 1, 4, 5});
  write_floats(folder.fs, "/c/w/0.1", {2, 3, 6, 7});
  write_floats(folder.fs, "/c/w/1.0", {8, 9, -1, -1});
  write_floats(folder.fs, "/c/w/1.1", {10, 11, -1, -1});
  folder.fs.write_file("/c/scalar/.zarray", as_bytes(zarray("[]", "[]")));
  write_floats(folder.fs, "/c/scalar/0", {42});
  folder.fs.write_file("/c/big/.zarray",
                       as_bytes(zarray("[1]", "[1]", R"("compressor":null,"order":"C")", ">f4")));
  folder.fs.write_file("/c/big/0", as_bytes(std::string_view("\x3f\x80\0\0", 4)));
  folder.fs.write_file("/c/rng_state/shard_0_1.pt",
                       testing::value_item(Value::list({Value::integer(5)})));
  CHECK(detect_format(folder.place()).driver == &megatron_dist_driver());
  const Manifest manifest = folder.read();
  CHECK(folder.floats(manifest, "w") == std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  CHECK(folder.floats(manifest, "scalar") == std::vector<float>{42});
  CHECK(folder.floats(manifest, "big") == std::vector<float>{1});
  const auto values = testing::values_of(manifest, *folder.directory);
  CHECK(values.at("iteration") == "7");
  CHECK(values.at("rng_state/shard_0_1") == "[5]");
}

TEST_CASE("bfloat16 of a zarr array under the name it was patched to") {
  for (const std::string name : {"bfloat16", "<V2", "|V2"}) {
    Folder folder;
    folder.config(kZarr);
    folder.common(testing::dict({}));
    folder.fs.write_file("/c/w/.zarray",
                         as_bytes(zarray("[1]", "[1]", R"("compressor":null,"order":"C")", name)));
    folder.fs.write_file("/c/w/0", as_bytes(std::string_view("\x80\x3f", 2)));
    const Manifest manifest = folder.read();
    CHECK(manifest.find("w")->spec.dtype == DType::kBFloat16);
  }
}

TEST_CASE("what a zarr array of Megatron never has is refused by name") {
  struct Bad {
    std::string json, why;
    Code code;
  };
  const std::vector<Bad> bad = {
      {zarray("[2]", "[2]", R"("compressor":{"id":"blosc"},"order":"C")"), "compressor",
       Code::kUnsupported},
      {zarray("[2]", "[2]", R"("compressor":null,"filters":[1],"order":"C")"), "filters",
       Code::kUnsupported},
      {zarray("[2]", "[2]", R"("compressor":null,"order":"F")"), "order", Code::kUnsupported},
      {zarray("[2]", "[2]", R"("order":"C")", "<U5"), "dtype", Code::kUnsupported},
      {zarray("[2]", "[0]"), "zero", Code::kCorrupt},
      {zarray("[2]", "[1,1]"), "ranks", Code::kCorrupt},
      {zarray("[-2]", "[1]"), "", Code::kCorrupt},
      {"{}", "dtype", Code::kCorrupt},
      {"[1]", "object", Code::kCorrupt},
      {"{", "", Code::kCorrupt}};
  for (const Bad& one : bad) {
    CAPTURE(one.json);
    Folder folder;
    folder.config(kZarr);
    folder.common(testing::dict({}));
    folder.fs.write_file("/c/w/.zarray", as_bytes(one.json));
    write_floats(folder.fs, "/c/w/0", {1, 2});
    std::string message;
    CHECK(folder.failure(message) == one.code);
    CHECK_THAT(message, Catch::Contains(one.why) && Catch::Contains("w/.zarray"));
  }
}

TEST_CASE("chunk files that are missing short or outside are named") {
  std::string message;
  Folder lacking;
  lacking.config(kZarr);
  lacking.common(testing::dict({}));
  lacking.fs.write_file("/c/w/.zarray", as_bytes(zarray("[4]", "[2]")));
  write_floats(lacking.fs, "/c/w/0", {1, 2});
  CHECK(lacking.failure(message) == Code::kCorrupt);
  CHECK_THAT(message, Catch::Contains("w/1"));
  write_floats(lacking.fs, "/c/w/1", {1});
  CHECK(lacking.failure(message) == Code::kCorrupt);
  CHECK_THAT(message, Catch::Contains("it has 4 bytes"));
  write_floats(lacking.fs, "/c/w/1", {1, 2});
  write_floats(lacking.fs, "/c/w/2", {1, 2});
  CHECK(lacking.failure(message) == Code::kCorrupt);
  CHECK_THAT(message, Catch::Contains("leaves the array"));
}

TEST_CASE("other spellings of a chunk's name are no chunks") {
  Folder folder;
  folder.config(kZarr);
  folder.common(testing::dict({}));
  folder.fs.write_file("/c/w/.zarray", as_bytes(zarray("[4]", "[2]")));
  write_floats(folder.fs, "/c/w/0", {1, 2});
  write_floats(folder.fs, "/c/w/1", {3, 4});
  write_floats(folder.fs, "/c/w/00", {5, 6});
  write_floats(folder.fs, "/c/w/01", {7, 8});
  CHECK(folder.floats(folder.read(), "w") == std::vector<float>{1, 2, 3, 4});
  folder.fs.remove_file("/c/w/1");
  std::string message;
  CHECK(folder.failure(message) == Code::kCorrupt);
  CHECK_THAT(message, Catch::Contains("w/1"));
}

TEST_CASE("an array that lost its header is missed") {
  Folder folder;
  folder.config(kZarr);
  folder.common(testing::dict({}));
  write_floats(folder.fs, "/c/w/0.0", {1, 2});
  std::string message;
  CHECK(folder.failure(message) == Code::kCorrupt);
  CHECK_THAT(message, Catch::Contains("w/.zarray") && Catch::Contains("missing"));
}

TEST_CASE("a declared grid of any size costs no more than its files") {
  Folder folder;
  folder.config(kZarr);
  folder.common(testing::dict({}));
  folder.fs.write_file("/c/w/.zarray", as_bytes(zarray("[1000000000,1000000000]", "[1,1]")));
  write_floats(folder.fs, "/c/w/0.0", {1});
  std::string message;
  CHECK(folder.failure(message) == Code::kCorrupt);
  CHECK_THAT(message, Catch::Contains("w/0.1"));
}

}  // namespace tessera
