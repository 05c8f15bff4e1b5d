// Folders of safetensors files: what the index, the names and the headers say about each other.
#include <tessera/base/error.h>
#include <tessera/encoding/safetensors_header.h>
#include <tessera/format/safetensors.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/support/note_text.h"
#include "tests/support/written_checkpoint.h"

namespace tessera::safetensors_shards_test {
namespace {

/// A folder in memory.
struct Folder {
  MemoryFileSystem fs;
  Folder() { fs.make_directories("/c"); }

  void text(const std::string& name, std::string_view content) {
    fs.write_file("/c/" + name, as_bytes(content));
  }
  /// uint8 tensors of 4 elements, each byte `fill`.
  void shard(const std::string& name, const std::vector<std::string>& tensors, char fill = 1,
             const std::vector<std::pair<std::string, std::string>>& metadata = {},
             std::int64_t numel = 4) {
    std::vector<SafetensorsTensor> layout;
    for (const std::string& tensor : tensors)
      layout.push_back({tensor, {DType::kUInt8, Shape{numel}}, 0, 0});
    layout_safetensors(layout);
    Bytes content = render_safetensors_header(layout, metadata, 8);
    content.resize(content.size() + tensors.size() * static_cast<std::size_t>(numel),
                   static_cast<std::byte>(fill));
    fs.write_file("/c/" + name, content);
  }
  Manifest read(bool tolerate = false, const std::string& file = "") {
    const auto directory = fs.open_directory("/c");
    ReadOptions options;
    options.tolerate_damage = tolerate;
    return safetensors_driver().manifest({directory.get(), file, "c"}, options);
  }
  Status failure(const std::string& file = "") {
    try {
      read(false, file);
    } catch (const Error& error) {
      return error.status();
    }
    return {};
  }
};

std::vector<std::string> codes(const Manifest& manifest) {
  std::vector<std::string> out;
  for (const Note& note : manifest.notes)
    out.push_back(testing::note_code(note) + " " + testing::note_severity(note));
  return out;
}

using Strings = std::vector<std::string>;

}  // namespace

TEST_CASE("what stands in a file's place is called by its name") {
  Folder folder;
  folder.text("model.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n");
  CHECK(folder.failure().code == Code::kUnsupported);
  CHECK_THAT(folder.failure().message, Catch::Contains("Git LFS"));
  folder.text("model.safetensors", "<!DOCTYPE html><html>not found</html>");
  CHECK_THAT(folder.failure().message, Catch::Contains("web page"));
}

TEST_CASE("files without an index are one checkpoint") {
  Folder folder;
  folder.shard("b.safetensors", {"x", "y"});
  folder.shard("a.safetensors", {"z"});
  folder.text("config.json", "{}");
  const Manifest manifest = folder.read();
  CHECK(manifest.files.size() == 2);
  CHECK(manifest.tensors.size() == 3);
  CHECK(manifest.notes.empty());
}

TEST_CASE("a tensor in two files is corrupt, naming both") {
  Folder folder;
  folder.shard("a.safetensors", {"x"});
  folder.shard("b.safetensors", {"x"});
  const Status status = folder.failure();
  CHECK(status.code == Code::kCorrupt);
  CHECK(status.context.tensor == "x");
  CHECK_THAT(status.message, Catch::Contains("a.safetensors") && Catch::Contains("b.safetensors"));
}

TEST_CASE("a numbered shard that is missing is found without an index, too") {
  Folder folder;
  folder.shard("model-00001-of-00003.safetensors", {"x"});
  folder.shard("model-00003-of-00003.safetensors", {"y"});
  const Status status = folder.failure();
  CHECK(status.code == Code::kCorrupt);
  CHECK_THAT(status.message, Catch::Contains("number 2 is missing"));
  CHECK(codes(folder.read(true)) == Strings{"CK010 error"});
}

TEST_CASE("files that the index does not name are ignored with a warning") {
  Folder folder;
  folder.shard("model.safetensors", {"x", "extra"});
  folder.shard("consolidated.safetensors", {"x"});
  folder.text("model.safetensors.index.json",
              R"({"metadata": {"total_size": 8}, "weight_map": {"x": "model.safetensors"}})");
  const Manifest manifest = folder.read();
  CHECK(manifest.tensors.size() == 2);
  CHECK(codes(manifest) == Strings{"CK018 warning", "CK031 warning"});
}

TEST_CASE("where two shards hold a tensor, the index decides") {
  Folder folder;
  folder.shard("a.safetensors", {"x", "y"});
  folder.shard("b.safetensors", {"x"}, 2);
  folder.text("i.safetensors.index.json",
              R"({"metadata": {}, "weight_map": {"x": "b.safetensors", "y": "a.safetensors"}})");
  const Manifest manifest = folder.read();
  REQUIRE(manifest.find("x")->chunk_count == 1);
  CHECK(manifest.files[manifest.source(*manifest.find("x"), 0).file].path == "b.safetensors");
  CHECK(codes(manifest) == Strings{"CK033 warning"});
}

TEST_CASE("a wrong total_size is only remarked") {
  Folder folder;
  folder.shard("a.safetensors", {"x"});
  folder.text(
      "i.safetensors.index.json",
      R"({"metadata": {"total_size": 5.0}, "weight_map": {"x": "a.safetensors"}, "more": [1, {"a": {}}]})");
  CHECK(codes(folder.read()) == Strings{"CK032 info"});
}

TEST_CASE("an index that is none, or leaves the folder, is corrupt") {
  for (const std::string text :
       {"", "[]", "{}", R"({"weight_map": {}})", R"({"weight_map": {"x": 1}})",
        R"({"weight_map": {"x": "../a.safetensors"}})",
        R"({"weight_map": {"x": "/a.safetensors"}})",
        R"({"weight_map": {"x": "d//a.safetensors"}})", R"({"weight_map": {"x": ""}})",
        R"({"weight_map": {"x": "a.safetensors", "x": "a.safetensors"}})",
        R"({"weight_map": "a.safetensors"})"}) {
    CAPTURE(text);
    Folder folder;
    folder.shard("a.safetensors", {"x"});
    folder.text("model.safetensors.index.json", text);
    const Status status = folder.failure();
    CHECK(status.code == Code::kCorrupt);
    CHECK(status.context.file == "model.safetensors.index.json");
  }
}

TEST_CASE("two indexes are ambiguous until one is named") {
  Folder folder;
  folder.shard("a.safetensors", {"x"});
  folder.text("a.safetensors.index.json", R"({"weight_map": {"x": "a.safetensors"}})");
  folder.text("b.safetensors.index.json", R"({"weight_map": {"x": "a.safetensors"}})");
  CHECK(folder.failure().code == Code::kUnsupported);
  CHECK(folder.failure("a.safetensors.index.json").code == Code::kOk);
}

TEST_CASE("a file that ends early is refused, or reported where damage is reported") {
  Folder folder;
  folder.shard("a.safetensors", {"x", "y"});
  Bytes content = folder.fs.read_file("/c/a.safetensors");
  content.resize(content.size() - 3);
  folder.fs.write_file("/c/a.safetensors", content);
  CHECK(folder.failure().code == Code::kCorrupt);
  const Manifest manifest = folder.read(true);
  CHECK(codes(manifest) == Strings{"CK011 error"});
  CHECK(manifest.tensors.size() == 2);
}

TEST_CASE("pieces with offsets become one tensor; damage among them is found") {
  const auto info = [](const std::string& offset) {
    return std::vector<std::pair<std::string, std::string>>{
        {"DCP_SHARDING_INFO", R"({"x": {"saved_offsets": [)" + offset + "]}}"}};
  };
  SECTION("whole") {
    Folder folder;
    folder.shard("shard-00001-model-00001-of-00001.safetensors", {"x"}, 1, info("0"));
    folder.shard("shard-00002-model-00001-of-00001.safetensors", {"x"}, 2, info("4"));
    const Manifest manifest = folder.read();
    CHECK(manifest.find("x")->spec.shape == Shape{8});
    CHECK(manifest.world_size == 2);
  }
  SECTION("a hole") {
    Folder folder;
    folder.shard("a.safetensors", {"x"}, 1, info("0"));
    folder.shard("b.safetensors", {"x"}, 2, info("5"));
    CHECK(folder.failure().code == Code::kCorrupt);
    CHECK(codes(folder.read(true)) == Strings{"CK012 error"});
  }
  SECTION("an overlap") {
    Folder folder;
    folder.shard("a.safetensors", {"x"}, 1, info("0"));
    folder.shard("b.safetensors", {"x"}, 2, info("3"));
    CHECK(folder.failure().code == Code::kCorrupt);
    CHECK(codes(folder.read(true)) == Strings{"CK013 error"});
  }
  SECTION("a copy") {
    Folder folder;
    folder.shard("a.safetensors", {"x"}, 1, info("0"));
    folder.shard("b.safetensors", {"x"}, 1, info("0"));
    CHECK(folder.read().find("x")->chunk_count == 2);
  }
  for (const std::string offset : {"", "0,0", "-1", "\"0\"", "9223372036854775807"}) {
    DYNAMIC_SECTION("offsets [" << offset << "]") {
      Folder folder;
      folder.shard("a.safetensors", {"x"}, 1, info(offset));
      CHECK(folder.failure().code == Code::kCorrupt);
    }
  }
}

TEST_CASE("damaged state of our own is corrupt") {
  const std::pair<const char*, const char*> kCases[] = {
      {"tessera.values", "{"},
      {"tessera.values", "[]"},
      {"tessera.values", R"({"x": 1})"},
      {"tessera.values", R"({"v": {"__tensor__": "no"}})"},
      {"tessera.values", R"({"v": {"__nope__": 1}})"},
      {"tessera.state", "{}"},
      {"tessera.state", R"({"entries": [["no", ["no"]]], "containers": []})"},
      {"tessera.state", R"({"entries": [["x", ["x"]], ["x", ["y"]]], "containers": []})"},
      {"tessera.state", R"({"entries": [["x", [-1]]], "containers": []})"},
      {"tessera.state", R"({"entries": [], "containers": [[[], "tuple", null, 0]]})"}};
  for (const auto& [key, json] : kCases) {
    CAPTURE(key, json);
    Folder folder;
    folder.shard("a.safetensors", {"x"}, 1, {{key, json}});
    CHECK(folder.failure().code == Code::kCorrupt);
  }
}

TEST_CASE("an adapter beside the shards of its model is none that the index forgot") {
  Folder folder;
  folder.shard("model-00001-of-00001.safetensors", {"a"});
  folder.shard("adapter_model.safetensors", {"a.lora_A.weight"});
  folder.shard("other.safetensors", {"b"});
  folder.text("model.safetensors.index.json",
              R"({"metadata":{},"weight_map":{"a":"model-00001-of-00001.safetensors"}})");
  const Manifest manifest = folder.read();
  REQUIRE(codes(manifest) == std::vector<std::string>{"CK018 warning"});
  CHECK(manifest.notes[0].file == "other.safetensors");
  CHECK(manifest.tensors.size() == 1);
}

}  // namespace tessera::safetensors_shards_test
