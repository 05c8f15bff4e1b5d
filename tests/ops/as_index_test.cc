// --as-index: shards named and split as the index of another set of shards says, and its types.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/encoding/json.h>
#include <tessera/format/safetensors.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>

#include "tests/support/convert_case.h"
#include "tests/support/note_text.h"

namespace as_index_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

/// The Hugging Face sample as the model that a run began from, and a run's checkpoint of it.
struct Run {
  MemoryFileSystem fs;

  Run() {
    load_sample(fs, "safetensors/hf_sharded");
    fs.rename("/source", "/base");
    convert(fs, convert_options("/base", "/run", 3, "torch-dcp"));
  }
  ConvertOptions to_hub(const std::string& from, const std::string& to) const {
    ConvertOptions options = convert_options(from, to, std::nullopt, "hf");
    options.own.set(kAsIndexFlag, "/base");
    return options;
  }
  std::map<std::string, std::string> weight_map(const std::string& folder,
                                                const std::string& index) const {
    const auto directory = fs.open_directory(folder);
    return read_shard_names(*directory, index).file_of;
  }
  Status refusal(const ConvertOptions& options) {
    try {
      convert(fs, options);
    } catch (const Error& error) {
      CHECK_FALSE(fs.stat(options.destination));
      return error.status();
    }
    return {};
  }
};

constexpr const char* kIndex = "model.safetensors.index.json";

std::vector<std::string> names_in(const MemoryFileSystem& fs, const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& [name, content] : fs.contents(folder))
    if (name.find("tessera.manifest") == std::string::npos) names.push_back(name);
  return names;
}

}  // namespace

TEST_CASE("a run goes back into the shards of the model it began from") {
  Run run;
  for (const std::string index : {"/base", "/base/model.safetensors.index.json"}) {
    ConvertOptions options = run.to_hub("/run", "/hub" + fmt::format("{}", index.size()));
    options.own.set(kAsIndexFlag, index);
    options.verify = true;
    CHECK(convert(run.fs, options).verified);
    const std::string hub = options.destination;
    CHECK(names_in(run.fs, hub) == names_in(run.fs, "/base"));
    CHECK(run.weight_map(hub, kIndex) == run.weight_map("/base", kIndex));
    CHECK(content_at(run.fs, hub).tensors == content_at(run.fs, "/base").tensors);
    const Value json = parse_json(run.fs.read_file(hub + "/" + kIndex));
    CHECK(json.find("metadata")->find("total_size")->as_int() == 2128);
  }
}

TEST_CASE("odd shard and index names are taken as they are") {
  Run run;
  run.fs.make_directories("/odd");
  std::string text = R"({"weight_map": {)";
  bool second = false;
  for (const auto& [name, file] : run.weight_map("/base", kIndex)) {
    text +=
        fmt::format("{}\"{}\": \"{}\"", text.ends_with('{') ? "" : ", ", name,
                    second ? "b/rest.safetensors" : "model.safetensors-00001-of-00009.safetensors");
    second = !second;
  }
  run.fs.write_file("/odd/mine.safetensors.index.json", as_bytes(text + "}}"));
  ConvertOptions options = run.to_hub("/run", "/hub");
  options.own.set(kAsIndexFlag, "/odd");
  convert(run.fs, options);
  CHECK(run.fs.stat("/hub/mine.safetensors.index.json"));
  CHECK(run.fs.stat("/hub/b/rest.safetensors"));
  CHECK(run.weight_map("/hub", "mine.safetensors.index.json") ==
        run.weight_map("/odd", "mine.safetensors.index.json"));
  CHECK(content_at(run.fs, "/hub").tensors == content_at(run.fs, "/base").tensors);
}

TEST_CASE("without a path the source's own index counts") {
  Run run;
  ConvertOptions options = convert_options("/base", "/out", std::nullopt, "safetensors");
  options.own.set(kAsIndexFlag, "");
  convert(run.fs, options);
  CHECK(run.weight_map("/out", kIndex) == run.weight_map("/base", kIndex));
  options.source = "/run";
  options.destination = "/none";
  const Status status = run.refusal(options);
  CHECK(status.code == Code::kInvalidArgument);
  CHECK_THAT(status.message, Catch::Contains("has no index"));
}

TEST_CASE("what the index does not list is refused by name, what is missing is said") {
  Run run;
  ConvertOptions renamed = run.to_hub("/run", "/refused");
  renamed.names.renames = {{"head.*", "lm_head.*"}};
  const Status status = run.refusal(renamed);
  CHECK(status.code == Code::kInvalidArgument);
  CHECK_THAT(status.message, Catch::Contains("does not list 2 of the 20 tensors") &&
                                 Catch::Contains("lm_head.weight"));
  ConvertOptions part = run.to_hub("/run", "/part");
  part.selection.exclude = {"head.*", "layers.2.down.weight"};
  const ConvertReport report = convert(run.fs, part);
  CHECK(std::ranges::any_of(report.notes, [](const Note& note) {
    return note_code(note) == "INDEX" && note.message.starts_with("3 of the tensors") &&
           note.message.find("head.bias") != std::string::npos;
  }));
  // A shard of nothing is not written, and not listed.
  CHECK_FALSE(run.fs.stat("/part/model-00003-of-00003.safetensors"));
  CHECK(content_at(run.fs, "/part").tensors.size() == 17);
}

TEST_CASE("types as those shards have them, patterns first") {
  Run run;
  ConvertOptions half = convert_options("/base", "/half", std::nullopt, "hf");
  half.own.set(kAsIndexFlag, "");
  half.transform.dtype = DType::kBFloat16;
  half.transform.keep_dtypes = {{"*norm*", std::nullopt}};
  convert(run.fs, half);
  ConvertOptions options = run.to_hub("/run", "/hub");
  options.own.set(kAsIndexFlag, "/half");
  options.dtype_as_index = true;
  options.verify = true;
  const ConvertReport report = convert(run.fs, options);
  CHECK(report.verified);
  CHECK(report.dtypes.size() >= 2);
  CHECK(content_at(run.fs, "/hub").tensors == content_at(run.fs, "/half").tensors);
  options.destination = "/kept";
  options.transform.keep_dtypes = {{"embed.*", DType::kFloat16}};
  convert(run.fs, options);
  CHECK_THAT(content_at(run.fs, "/kept").tensors.at("embed.weight"), Catch::StartsWith("float16 "));
}

TEST_CASE("as-index says what does not go with it") {
  Run run;
  const auto message = [&](auto edit) {
    ConvertOptions options = run.to_hub("/run", "/no");
    edit(options);
    const Status status = run.refusal(options);
    CHECK((status.code == Code::kInvalidArgument || status.code == Code::kNotFound ||
           status.code == Code::kCorrupt));
    return status.message;
  };
  CHECK_THAT(message([](ConvertOptions& o) { o.to = "torch-dcp"; }),
             Catch::Contains("not for torch-dcp"));
  CHECK_THAT(message([](ConvertOptions& o) { o.destination = "/no.safetensors"; }),
             Catch::Contains("several files"));
  CHECK_THAT(message([](ConvertOptions& o) { o.own.set(kMaxShardSizeFlag, 1000); }),
             Catch::Contains("--max-shard-size exclude each other"));
  CHECK_THAT(message([](ConvertOptions& o) { o.own.set(kAsIndexFlag, "/run"); }),
             Catch::Contains("has no *.safetensors.index.json"));
  CHECK_THAT(message([](ConvertOptions& o) { o.own.set(kAsIndexFlag, "/absent"); }),
             Catch::Contains("/absent: not found"));
  CHECK_THAT(message([](ConvertOptions& o) {
               o.own = {};
               o.dtype_as_index = true;
             }),
             Catch::Contains("--dtype as-index needs --as-index"));
  run.fs.write_file("/bad/x.safetensors.index.json",
                    as_bytes(R"({"weight_map": {"head.weight": "../x.safetensors"}})"));
  CHECK_THAT(message([](ConvertOptions& o) { o.own.set(kAsIndexFlag, "/bad"); }),
             Catch::Contains("no file of this folder"));
  run.fs.write_file("/bad/x.safetensors.index.json",
                    as_bytes(R"({"weight_map": {"head.weight": "x.safetensors.index.json"}})"));
  CHECK_THAT(message([](ConvertOptions& o) { o.own.set(kAsIndexFlag, "/bad"); }),
             Catch::Contains("is no safetensors file"));
}

}  // namespace as_index_test
