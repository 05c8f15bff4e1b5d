// An index of shards that cannot be parsed: refused by every verb that judges; --salvage takes the
// shards by the numbers in their names, where these show which belong together.
#include <tessera/base/error.h>
#include <tessera/ops/verify.h>

#include <catch2/catch.hpp>

#include "tests/support/convert_case.h"
#include "tests/support/open_case.h"

namespace lost_index_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

/// A sample of numbered shards whose index has another content.
struct Broken {
  MemoryFileSystem fs;
  OpenedContent before;
  std::string index;   // its path
  std::string suffix;  // of its shards

  Broken(const std::string& sample, std::string_view content) {
    const std::string source = load_sample(fs, sample);
    before = content_at(fs, source);
    for (const FileInfo& info : fs.open_directory("/source")->list())
      if (info.name.ends_with(".index.json")) index = "/source/" + info.name;
    REQUIRE_FALSE(index.empty());
    suffix = has(index, ".safetensors.") ? ".safetensors" : ".bin";
    fs.write_file(index, as_bytes(std::string(content)));
  }

  std::string first_shard() const {
    for (const FileInfo& info : fs.open_directory("/source")->list())
      if (info.name.ends_with(suffix)) return "/source/" + info.name;
    return "";
  }
  Status status(const std::string& source, bool salvage) {
    ConvertOptions options = convert_options(source, "/out", std::nullopt, "torch-dcp");
    options.salvage = salvage;
    return status_of(fs, options);
  }
  ConvertReport salvaged(const std::string& source) {
    ConvertOptions options = convert_options(source, "/out", std::nullopt, "torch-dcp");
    options.salvage = true;
    return convert(fs, options);
  }
};

constexpr const char* kSamples[] = {"safetensors/hf_sharded", "torchsave/hf_shards"};
constexpr const char* kContents[] = {
    "", "{", "\x80\x02}q", "[]", "{}", R"({"weight_map":{}})", R"({"weight_map":{"a":1}})"};

}  // namespace

TEST_CASE("an index that cannot be parsed is salvaged by the numbers of its shards") {
  for (const char* sample : kSamples) {
    for (const char* content : kContents) {
      INFO(sample << ", index " << content);
      Broken broken(sample, content);
      CHECK(broken.status("/source", false).code == Code::kCorrupt);
      CHECK_THROWS_AS(verify_checkpoint(broken.fs, "/source", {}), Error);
      for (const std::string source : {std::string("/source"), broken.index}) {
        INFO(source);
        const ConvertReport report = broken.salvaged(source);
        REQUIRE(report.lost.size() == 1);
        CHECK("/source/" + report.lost[0].name == broken.index);
        CHECK(has(report.lost[0].reason, "taken by the numbers in their names"));
        CHECK(content_at(broken.fs, "/out").tensors == broken.before.tensors);
        broken.fs.remove_tree("/out");
      }
    }
  }
}

TEST_CASE("with the index and a shard lost, what the others hold is whole") {
  for (const char* sample : kSamples) {
    INFO(sample);
    Broken broken(sample, "{");
    broken.fs.remove_file(broken.first_shard());
    const ConvertReport report = broken.salvaged("/source");
    CHECK(report.lost.size() == 2);
    const auto after = content_at(broken.fs, "/out").tensors;
    CHECK((!after.empty() && after.size() < broken.before.tensors.size()));
    for (const auto& [name, content] : after) CHECK(broken.before.tensors.at(name) == content);
  }
}

TEST_CASE("without an index nobody knows which of other files belong to a model") {
  for (const char* sample : kSamples) {
    for (const char* other : {"other", "model-00001-of-00009"}) {
      INFO(sample << ", " << other);
      Broken broken(sample, "{");
      broken.fs.write_file(std::string("/source/") + other + broken.suffix,
                           broken.fs.read_file(broken.first_shard()));
      CHECK(broken.status("/source", true).code == Code::kCorrupt);
      CHECK_FALSE(broken.fs.stat("/out"));
    }
  }
}

}  // namespace lost_index_test
