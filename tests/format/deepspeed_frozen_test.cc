// Frozen and shared parameters of DeepSpeed checkpoints: the optimizer knows none of the former and
// one name of the latter, and both are in what zero_to_fp32 gives (tests/format/data).
#include <tessera/encoding/json.h>
#include <tessera/encoding/torch_archive.h>
#include <tessera/format/deepspeed_zero.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/support/convert_case.h"
#include "tests/support/sample_case.h"

namespace tessera::deepspeed_frozen_test {
namespace {

using namespace testing;

const std::string kData = TESSERA_SOURCE_DIR "/tests/format/data/deepspeed_frozen_tied/";

std::string text_of(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// The case's files below /source; returns what its oracle says.
std::map<std::string, std::string> load(MemoryFileSystem& fs, const std::string& name) {
  const std::filesystem::path root = kData + name + "/checkpoint";
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root))
    if (entry.is_regular_file())
      fs.write_file("/source/" + std::filesystem::relative(entry.path(), root).string(),
                    as_bytes(text_of(entry.path())));
  JsonLimits limits;
  limits.max_depth = 64;
  return expected_content(parse_json(as_bytes(text_of(kData + name + "/expected.json")), limits));
}

bool is_step(const std::string& name) { return name.ends_with(".step"); }

}  // namespace

TEST_CASE("frozen and shared parameters read as zero_to_fp32 gives them") {
  for (const char* name : {"zero2_w3", "zero3_bf16_w2", "zero2_bf16_w2"}) {
    CAPTURE(name);
    MemoryFileSystem fs;
    const auto expected = load(fs, name);
    const auto found = content_at(fs, "/source").tensors;
    CHECK(found == expected);
    CHECK(found.at("model.head.weight") == found.at("model.embed.weight"));
    CHECK(found.contains("model.layers.0.up.weight"));  // frozen
    CHECK_FALSE(found.contains("optim.state.layers.0.up.weight.exp_avg"));
  }
}

TEST_CASE("frozen and shared parameters are there at every W and stage, and in other formats",
          "[wide]") {
  for (const char* name : {"zero2_w3", "zero3_bf16_w2", "zero2_bf16_w2"}) {
    MemoryFileSystem fs;
    const auto expected = load(fs, name);
    const auto check = [&](const std::string& format, std::optional<std::int64_t> ranks,
                           int stage) {
      CAPTURE(name, format, ranks.value_or(0), stage);
      ConvertOptions options = convert_options("/source", "/out", ranks, format);
      if (stage > 0) options.own.set(kZeroStageFlag, stage);
      options.verify = true;
      REQUIRE(convert(fs, options).published);
      const auto found = content_at(fs, "/out").tensors;
      for (const auto& [tensor, content] : expected) {
        if (is_step(tensor)) continue;  // a value in stage 3
        CAPTURE(tensor);
        REQUIRE(found.contains(tensor));
        CHECK(found.at(tensor) == content);
      }
      fs.remove_tree("/out");
    };
    for (const std::int64_t ranks : {1, 2, 3, 7})
      for (const int stage : {1, 2, 3}) check("deepspeed-zero", ranks, stage);
    check("deepspeed-universal", std::nullopt, 0);
    check("torch-dcp", 4, 0);
    check("torch-save", std::nullopt, 0);
  }
}

TEST_CASE("the module keeps the types of its own copies, those of shared names included") {
  MemoryFileSystem fs;
  load(fs, "zero2_bf16_w2");
  const auto types = [&](const std::string& folder) {
    const auto file =
        fs.open_directory(folder + "/global_step2")->open("mp_rank_00_model_states.pt");
    const TorchArchive archive = open_torch_archive(ByteWindow::whole(*file));
    std::map<std::string, DType> out;
    for (const auto& [name, value] : archive.root.find("module")->as_dict())
      out.emplace(name.as_string(), archive.tensors[value.tensor_index()].dtype);
    return out;
  };
  REQUIRE(convert(fs, convert_options("/source", "/out", 4, "deepspeed-zero")).published);
  CHECK(types("/source").at("head.weight") == DType::kBFloat16);
  CHECK(types("/out") == types("/source"));
}

}  // namespace tessera::deepspeed_frozen_test
