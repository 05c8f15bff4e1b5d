// torch_checkpointing, DCP's announced successor: files of items and ranks, with metadata.pkl of both
// versions and without; what contradicts itself is refused, and nothing is unpickled.
#include <tessera/base/error.h>
#include <tessera/format/registry.h>
#include <tessera/format/torch_checkpointing.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "lib/format/torch_checkpointing/items.h"
#include "lib/format/torch_checkpointing/metadata.h"
#include "tests/support/convert_case.h"
#include "tests/support/sample_case.h"
#include "tests/support/written_checkpoint.h"

namespace tessera::torch_checkpointing_test {
namespace {

using namespace testing;
using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;

/// Of what is written: the source's own, else the newest.
std::string version_of(const std::string& source) {
  return source.find("metadata_v1") != std::string::npos ? "metadata 1.0" : "metadata 2.0";
}

/// Names that differ from rank to rank are one for each rank here.
bool is_of_a_rank(const Value& expected, const std::string& name) {
  const Value* own = expected.find("rank_own");
  return own && own->is_dict() && own->find(name) != nullptr;
}

std::string text_of(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// How a checkpoint reads whose metadata.pkl is this file of tests/format/data.
Status with_metadata(const std::string& name) {
  MemoryFileSystem fs;
  load_sample(fs, "torch-checkpointing/pp2_dp2_w4");
  const std::string data = TESSERA_SOURCE_DIR "/tests/format/data/torch_checkpointing_hostile/";
  const std::string bytes = text_of(data + name + ".pkl");
  REQUIRE_FALSE(bytes.empty());
  fs.write_file("/source/metadata.pkl", as_bytes(bytes));
  try {
    content_at(fs, "/source");
  } catch (const Error& error) {
    return error.status();
  }
  return {};
}

}  // namespace

TEST_CASE("torch_checkpointing's folders read as its own loader gives them") {
  const std::vector<std::string> cases = sample_names("torch-checkpointing");
  REQUIRE(cases.size() == 8);
  for (const std::string& name : cases) {
    CAPTURE(name);
    const SampleCase sample(name);
    const Detection detected = detect_format(sample.place());
    REQUIRE(detected.driver == &torch_checkpointing_driver());
    const Manifest manifest = read_all(torch_checkpointing_driver(), sample.place());
    auto found = content_of(manifest, *sample.directory);
    std::erase_if(found,
                  [](const auto& item) { return item.first.find(".rank_") != std::string::npos; });
    CHECK(found == expected_content(sample.expected));
    const auto values = values_of(manifest, *sample.directory);
    for (const auto& [key, value] : expected_values(sample.expected)) {
      CAPTURE(key);
      if (is_of_a_rank(sample.expected, key)) continue;
      REQUIRE(values.contains(key));
      CHECK(values.at(key) == value);
    }
    CHECK(manifest.world_size == sample.expected.find("world_size")->as_int());
  }
}

TEST_CASE("what differs from rank to rank in torch_checkpointing's files is each rank's own") {
  const SampleCase sample("torch-checkpointing/plain_w2");
  const Manifest manifest = read_all(torch_checkpointing_driver(), sample.place());
  CHECK(manifest.find("rng.cpu.rank_0"));
  CHECK(manifest.find("rng.cpu.rank_1"));
  CHECK_FALSE(manifest.find("rng.cpu"));
}

TEST_CASE("torch_checkpointing's state goes to other formats unchanged") {
  for (const char* name : {"torch-checkpointing/safetensors_w2", "torch-checkpointing/geometry_w2",
                           "torch-checkpointing/tp_fsdp_2x2"}) {
    CAPTURE(name);
    MemoryFileSystem fs;
    load_sample(fs, name);
    ConvertOptions options = convert_options("/source", "/dcp", 3, "torch-dcp");
    options.verify = true;
    REQUIRE(status_of(fs, options).code == Code::kOk);
    CHECK(content_at(fs, "/dcp").tensors == content_at(fs, "/source").tensors);
  }
}

TEST_CASE(
    "torch_checkpointing's folders are written for any number of ranks, both versions alike") {
  for (const char* name :
       {"dcp/fsdp2_w4", "torch-checkpointing/uneven_w4", "torch-checkpointing/pp2_dp2_w4",
        "torch-checkpointing/metadata_v1_w2"}) {
    CAPTURE(name);
    MemoryFileSystem fs;
    load_sample(fs, name);
    const auto before = content_at(fs, "/source");
    for (const std::int64_t world_size : {1, 2, 5}) {
      ConvertOptions options =
          convert_options("/source", "/out", world_size, "torch-checkpointing");
      options.verify = true;
      REQUIRE(status_of(fs, options).to_string() == Status{}.to_string());
      CHECK(content_at(fs, "/out").tensors == before.tensors);
      const OpenedCheckpoint opened = open_checkpoint(fs, "/out");
      CHECK(opened.manifest.world_size == world_size);
      CHECK_THAT(opened.manifest.dialect, EndsWith(version_of(name)));
      fs.remove_tree("/out");
    }
  }
}

TEST_CASE("a mesh of two dims and another version of metadata.pkl are as asked for") {
  MemoryFileSystem fs;
  load_sample(fs, "torch-checkpointing/tp_fsdp_2x2");
  ConvertOptions options = convert_options("/source", "/out", std::nullopt, "torch-checkpointing");
  options.target.mesh = Mesh::parse("dp=2,tp=2");
  options.target.placements = {{"*up.weight", Placement::parse_list("strided(0,2),shard(0)")},
                               {"*down.weight", Placement::parse_list("shard(0),shard(1)")}};
  options.own.set(kMetadataVersionFlag, 1);
  options.verify = true;
  REQUIRE(status_of(fs, options).to_string() == Status{}.to_string());
  const auto directory = fs.open_directory("/out");
  const auto metadata = checkpointing::read_metadata(*directory, 0);
  REQUIRE(metadata);
  CHECK(metadata->version == "1.0");
  const auto& model = metadata->items.at("model").paths;
  const checkpointing::Group& up = model.at("layers.0.up.weight").groups.front();
  CHECK(up.layout->placements() == Placement::parse_list("strided(0,2),shard(0)"));
  CHECK(up.ranks == std::vector<std::int64_t>{0, 1, 2, 3});
  CHECK(content_at(fs, "/out").tensors == content_at(fs, "/source").tensors);
}

TEST_CASE(
    "each rank gets its own back in torch_checkpointing's files, and flat names become items") {
  MemoryFileSystem fs;
  load_sample(fs, "torch-checkpointing/plain_w2");
  const auto own = content_at(fs, "/source");
  REQUIRE(status_of(fs, convert_options("/source", "/two", 2)).code == Code::kOk);
  CHECK(content_at(fs, "/two").tensors == own.tensors);
  CHECK(status_of(fs, convert_options("/source", "/three", 3)).code == Code::kUnsupported);

  MemoryFileSystem flat;
  load_sample(flat, "safetensors/hf_sharded");
  REQUIRE(status_of(flat, convert_options("/source", "/out", 2, "torch-checkpointing")).code ==
          Code::kOk);
  CHECK(content_at(flat, "/out").tensors == content_at(flat, "/source").tensors);
  ConvertOptions other = convert_options("/source", "/other", 2, "torch-checkpointing");
  other.names.renames = {{"*", "a/b.*"}};
  const Status status = status_of(flat, other);
  CHECK(status.code == Code::kUnsupported);
  CHECK_THAT(status.message, Contains("\"a/b\" is no name of an item"));
}

TEST_CASE("a metadata.pkl of torch_checkpointing that lies is refused by what it lies about") {
  const Status code = with_metadata("code_in_metadata");
  CHECK(code.code == Code::kCorrupt);
  const Status outside = with_metadata("file_outside");
  CHECK(outside.code == Code::kCorrupt);
  CHECK_THAT(outside.message, Contains("not below the folder"));
  const Status ghost = with_metadata("ghost_name");
  CHECK(ghost.code == Code::kCorrupt);
  CHECK_THAT(ghost.message, Contains("no rank's file holds it"));
  const Status shape = with_metadata("wrong_global_shape");
  CHECK(shape.code == Code::kCorrupt);
  CHECK_THAT(shape.message, Contains("metadata.pkl says"));
  const Status placement = with_metadata("unknown_placement");
  CHECK(placement.code == Code::kUnsupported);
  CHECK_THAT(placement.message, Contains("placement"));
  const Status version = with_metadata("unknown_version");
  CHECK(version.code == Code::kUnsupported);
  CHECK_THAT(version.message, Contains("version \"3.0\""));
}

TEST_CASE("a rank's file that is missing or cut is named") {
  MemoryFileSystem fs;
  load_sample(fs, "torch-checkpointing/pp2_dp2_w4");
  const Bytes whole = fs.read_file("/source/model_1.pt");
  fs.write_file("/source/model_1.pt", ByteView(whole).first(whole.size() / 2));
  CHECK_THROWS_AS(content_at(fs, "/source"), Error);
  fs.remove_file("/source/model_1.pt");
  CHECK_THROWS_WITH(content_at(fs, "/source"), Contains("model_1.pt"));
}

TEST_CASE("a metadata.pkl that is cut is damage of one checkpoint, not a folder of several") {
  for (const char* name : {"geometry_w2", "pp2_dp2_w4"})
    for (const int half : {0, 1}) {
      CAPTURE(name, half);
      MemoryFileSystem fs;
      load_sample(fs, std::string("torch-checkpointing/") + name);
      const Bytes whole = fs.read_file("/source/metadata.pkl");
      fs.write_file("/source/metadata.pkl", ByteView(whole).first(half * whole.size() / 2));
      CHECK_THROWS_WITH(content_at(fs, "/source"), Contains("metadata.pkl"));
    }
}

TEST_CASE("names of items and ranks mean nothing without what torch_checkpointing writes") {
  using checkpointing::parse_item_file;
  CHECK(parse_item_file("model_3.pt")->item == "model");
  CHECK(parse_item_file("train_state_2_10.pt")->item == "train_state_2");
  CHECK(parse_item_file("train_state_2_10.pt")->rank == 10);
  for (const char* name : {"model.pt", "_3.pt", "model_03.pt", "model_x.pt", "mo.del_3.pt",
                           "model_3.pth", "model_12345678.pt"})
    CHECK_FALSE(parse_item_file(name));
  // Two epochs of one file each.
  MemoryFileSystem fs;
  const std::string one = load_sample(fs, "torchsave/adamw_zip");
  const Bytes bytes = fs.read_file(one);
  fs.write_file("/run/epoch_0.pt", bytes);
  fs.write_file("/run/epoch_1.pt", bytes);
  const auto directory = fs.open_directory("/run");
  CHECK(torch_checkpointing_driver().probe({directory.get(), "", "run"}).answer ==
        ProbeResult::Answer::kNo);
}

}  // namespace tessera::torch_checkpointing_test
