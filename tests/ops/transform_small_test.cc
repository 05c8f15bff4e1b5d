// Names, casts and the vocabulary of small states put together by hand, through whole conversions:
// what the result holds, and what the report says of it.
#include <tessera/base/error.h>
#include <tessera/ops/optim.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>

#include "tests/support/convert_case.h"
#include "tests/support/note_text.h"
#include "tests/support/rank_archive.h"

namespace transform_small_test {

using namespace tessera;
using namespace tessera::testing;
using Catch::Contains;

namespace {

using Weights = std::vector<std::pair<std::string, Shape>>;

/// A model and Adam's moments by name; elements count up, each tensor from another number on.
std::string save(MemoryFileSystem& fs, const Weights& weights) {
  RankArchive archive;
  float next = 1;
  const auto filled = [&](const Shape& shape) {
    std::vector<float> values(static_cast<std::size_t>(shape.numel()));
    for (float& value : values) value = next++;
    return archive.tensor(shape, values);
  };
  std::vector<std::pair<std::string, Value>> model, states;
  ValueList members;
  for (const auto& [name, shape] : weights) {
    model.emplace_back(name, filled(shape));
    states.emplace_back(name, dict({{"step", archive.tensor(Shape{}, {2})},
                                    {"exp_avg", filled(shape)},
                                    {"exp_avg_sq", filled(shape)}}));
    members.push_back(text(name));
  }
  const Value group = dict({{"lr", Value::real(0.5)}, {"params", Value::list(members)}});
  fs.make_directories("/in");
  fs.write_file(
      "/in/state.pt",
      archive.render(dict(
          {{"model", dict(model)},
           {"optim", dict({{"state", dict(states)}, {"param_groups", Value::list({group})}})}})));
  return "/in/state.pt";
}

std::vector<std::string> names_at(FileSystem& fs, const std::string& path) {
  std::vector<std::string> out;
  for (const auto& [name, content] : content_at(fs, path).tensors) out.push_back(name);
  return out;
}

}  // namespace

TEST_CASE("two parameters take each other's names, and their state with them") {
  MemoryFileSystem fs;
  const std::string source = save(fs, {{"a", {2, 2}}, {"b", {2, 2}}});
  ConvertOptions options = convert_options(source, "/out", 2, "torch-dcp");
  options.names.renames = {{"a", "b"}, {"b", "a"}};
  options.verify = true;
  CHECK(convert(fs, options).verified);
  const auto before = content_at(fs, source).tensors, after = content_at(fs, "/out").tensors;
  CHECK(after.at("model.a") == before.at("model.b"));
  CHECK(after.at("model.b") == before.at("model.a"));
  CHECK(after.at("optim.state.a.exp_avg") == before.at("optim.state.b.exp_avg"));
  CHECK(after.at("optim.state.b.exp_avg_sq") == before.at("optim.state.a.exp_avg_sq"));
}

TEST_CASE("a prefix goes from weights, state and groups, as whole components") {
  MemoryFileSystem fs;
  const std::string source =
      save(fs, {{"module.a.weight", {2, 2}}, {"modulex.b.weight", {2, 2}}, {"c.module.d", {3}}});
  for (const std::string prefix : {"module", "module."}) {
    CAPTURE(prefix);
    ConvertOptions options = convert_options(source, "/out", 2, "torch-dcp");
    options.names.strip_prefix = prefix;
    options.force = true;
    options.verify = true;
    const ConvertReport report = convert(fs, options);
    CHECK(report.verified);
    const OpenedContent after = content_at(fs, "/out");
    CHECK(after.tensors.contains("model.a.weight"));
    CHECK(after.tensors.contains("model.modulex.b.weight"));
    CHECK(after.tensors.contains("model.c.module.d"));
    CHECK(after.tensors.contains("optim.state.a.weight.exp_avg"));
    CHECK(after.tensors.contains("optim.state.modulex.b.weight.exp_avg"));
    CHECK(after.values.at("optim.param_groups.0.params") ==
          R"(["a.weight","modulex.b.weight","c.module.d"])");
  }
}

TEST_CASE("a prefix that would make two names one is refused with both") {
  MemoryFileSystem fs;
  ConvertOptions options =
      convert_options(save(fs, {{"module.a", {2}}, {"a", {2}}}), "/out", std::nullopt, "torch-dcp");
  options.names.strip_prefix = "module";
  const Status status = status_of(fs, options);
  CHECK(status.code == Code::kInvalidArgument);
  CHECK_THAT(status.message, Contains("\"module.a\"") && Contains("\"a\""));
  CHECK_FALSE(fs.stat("/out"));
}

TEST_CASE("a dry run lists every rename and writes nothing") {
  MemoryFileSystem fs;
  const std::string source = save(fs, {{"layers.0.w", {2, 2}}, {"layers.1.w", {2, 2}}});
  const auto before = fs.contents("/");
  ConvertOptions options = convert_options(source, "/out", std::nullopt, "torch-dcp");
  options.names.renames = {{"layers.*.w", "h.*.weight"}};
  options.dry_run = true;
  const ConvertReport report = convert(fs, options);
  REQUIRE(report.transformations.size() == 1);
  CHECK(report.transformations[0].changes ==
        std::vector<std::string>{"layers.0.w -> h.0.weight", "layers.1.w -> h.1.weight"});
  CHECK(fs.contents("/") == before);
}

TEST_CASE("elements that overflow a type are counted and told, those that were infinite are not") {
  MemoryFileSystem fs;
  RankArchive archive;
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const Value model =
      dict({{"a", archive.tensor(Shape{2, 3}, {1e6F, 1, 70000, kInf, 65519, -1e30F})},
            {"b", archive.tensor(Shape{2}, {1e-30F, 0})}});
  fs.make_directories("/in");
  fs.write_file("/in/state.pt", archive.render(dict({{"model", model}})));
  ConvertOptions options = convert_options("/in/state.pt", "/out.pt", std::nullopt);
  options.transform.dtype = DType::kFloat16;
  options.verify = true;
  const ConvertReport report = convert(fs, options);
  CHECK(report.verified);
  const auto warned = std::ranges::find_if(report.notes, [](const Note& note) {
    return note_code(note) == "CAST" && note.severity == Severity::kWarning;
  });
  REQUIRE(warned != report.notes.end());
  CHECK(warned->tensor == "model.a");
  CHECK_THAT(warned->message, Catch::StartsWith("3 of 6 elements do not fit float16"));
  CHECK(std::ranges::count(report.notes, "CAST", note_code<Note>) == 2);  // and one became zero
}

TEST_CASE("an optimizer inside of a value is not said to be absent") {
  MemoryFileSystem fs;
  RankArchive archive;
  const Value optim = dict({{"state", dict({{"exp_avg", archive.tensor(Shape{1}, {3})}})},
                            {"param_groups", Value::list({})}});
  fs.make_directories("/in");
  fs.write_file("/in/state.pt",
                archive.render(dict(
                    {{"run", Value::list({dict({{"optimizer", optim}})}, Value::Kind::kTuple)}})));
  OpenedCheckpoint opened = open_checkpoint(fs, "/in/state.pt");
  CHECK(inspect_optimizer(opened, nullptr).held_in == "run");
}

TEST_CASE("tensors inside of a model's values are not cast, which is said") {
  MemoryFileSystem fs;
  RankArchive archive;
  const Value pair = Value::list({archive.tensor(Shape{2}, {1, 2}), archive.tensor(Shape{1}, {3})},
                                 Value::Kind::kTuple);
  const Value optim = dict({{"state", dict({{"exp_avg", archive.tensor(Shape{1}, {3})}})},
                            {"param_groups", Value::list({})}});
  fs.make_directories("/in");
  fs.write_file("/in/state.pt",
                archive.render(Value::list({dict({{"w", pair}}), optim}, Value::Kind::kTuple)));
  ConvertOptions options = convert_options("/in/state.pt", "/out", 1, "torch-dcp");
  options.transform.dtype = DType::kBFloat16;
  const ConvertReport report = convert(fs, options);
  const auto note = std::ranges::find(report.notes, "CAST", note_code<Note>);
  REQUIRE(note != report.notes.end());
  CHECK(note->severity == Severity::kWarning);
  CHECK_THAT(note->message, Contains("3 tensors inside of values"));
}

TEST_CASE("the first pattern of keep-dtype that matches wins") {
  MemoryFileSystem fs;
  const std::string source = save(fs, {{"a.weight", {2, 2}}, {"b.weight", {2, 2}}});
  ConvertOptions options = convert_options(source, "/out", std::nullopt, "torch-dcp");
  options.transform.dtype = DType::kBFloat16;
  options.transform.keep_dtypes = {parse_keep_dtype("model.a*=fp16"),
                                   parse_keep_dtype("model.*=fp32")};
  convert(fs, options);
  const OpenedCheckpoint opened = open_checkpoint(fs, "/out");
  CHECK(opened.manifest.find("model.a.weight")->spec.dtype == DType::kFloat16);
  CHECK(opened.manifest.find("model.b.weight")->spec.dtype == DType::kFloat32);
  CHECK(opened.manifest.find("optim.state.a.weight.exp_avg")->spec.dtype == DType::kFloat32);
}

TEST_CASE("the bias of a vocabulary matrix gets as many elements as that gets rows") {
  MemoryFileSystem fs;
  const std::string source = save(fs, {{"model.embed_tokens.weight", {5, 2}},
                                       {"model.norm.bias", {5}},
                                       {"lm_head.weight", {5, 2}},
                                       {"lm_head.bias", {5}}});
  ConvertOptions options = convert_options(source, "/out", 2, "torch-dcp");
  options.transform.vocab_size = 8;
  options.verify = true;
  CHECK(convert(fs, options).verified);
  const OpenedCheckpoint opened = open_checkpoint(fs, "/out");
  const auto shape = [&](const std::string& name) {
    return opened.manifest.find(name)->spec.shape;
  };
  CHECK(shape("model.lm_head.weight") == Shape{8, 2});
  CHECK(shape("model.lm_head.bias") == Shape{8});
  CHECK(shape("optim.state.lm_head.bias.exp_avg") == Shape{8});
  CHECK(shape("model.model.norm.bias") == Shape{5});
  options = convert_options("/out", "/back", 2);
  options.transform.vocab_size = 5;
  convert(fs, options);
  CHECK(content_at(fs, "/back").tensors == content_at(fs, source).tensors);
  options = convert_options(source, "/named", std::nullopt, "torch-dcp");
  options.transform.vocab_size = 8;
  options.transform.vocab_tensors = {"lm_head.weight"};  // that one alone
  convert(fs, options);
  const OpenedCheckpoint named = open_checkpoint(fs, "/named");
  CHECK(named.manifest.find("model.lm_head.bias")->spec.shape == Shape{5});
}

TEST_CASE("a tied weight that --vocab-tensor does not match is told of") {
  MemoryFileSystem fs;
  const std::string source = load_sample(fs, "torchsave/sgd_tied_zip");
  for (const bool both : {false, true}) {
    CAPTURE(both);
    ConvertOptions options = convert_options(source, "/out", std::nullopt, "torch-dcp");
    options.force = true;
    options.transform.vocab_size = 13;
    options.transform.vocab_tensors = {"embed.weight"};
    if (both) options.transform.vocab_tensors.push_back("head.weight");
    const ConvertReport report = convert(fs, options);
    const auto told = std::ranges::find(report.notes, "VOCAB", note_code<Note>);
    CHECK((told == report.notes.end()) == both);
    if (!both) CHECK(told->tensor == "model.head.weight");
    const OpenedCheckpoint opened = open_checkpoint(fs, "/out");
    CHECK(opened.manifest.find("model.head.weight")->spec.shape[0] == (both ? 13 : 11));
  }
}

TEST_CASE(
    "a teacher's weight keeps its rows where --vocab-tensor names the student's, and it is said") {
  MemoryFileSystem fs;
  const std::string source = save(fs, {{"student.emb.weight", {6, 2}},
                                       {"student.head.weight", {3, 2}},
                                       {"teacher.emb.weight", {6, 2}},
                                       {"teacher.head.weight", {6, 2}}});
  ConvertOptions options = convert_options(source, "/out", 1, "torch-dcp");
  options.transform.vocab_size = 8;
  options.transform.vocab_tensors = {"student.emb.weight"};
  const ConvertReport report = convert(fs, options);
  REQUIRE(report.published);
  std::vector<std::string> said;
  for (const Note& note : report.notes)
    if (note_code(note) == "VOCAB") said.push_back(note.tensor);
  CHECK(said == std::vector<std::string>{"model.teacher.emb.weight"});
}

TEST_CASE("assets come from the folder that is named, and a missing one is said") {
  MemoryFileSystem fs;
  const std::string source = save(fs, {{"a", {2, 2}}});
  fs.write_file("/in/config.json", as_bytes("{}"));  // beside the source, not asked for
  fs.make_directories("/base");
  fs.write_file("/base/tokenizer.json", as_bytes("{}"));
  ConvertOptions options = convert_options(source, "/out", std::nullopt, "hf");
  options.copy_assets = true;
  options.assets_directory = "/base";
  CHECK(convert(fs, options).assets == std::vector<std::string>{"tokenizer.json"});
  CHECK(fs.stat("/out/tokenizer.json"));
  CHECK_FALSE(fs.stat("/out/config.json"));
  options.destination = "/none";
  options.assets_directory = "/nowhere";
  CHECK(status_of(fs, options).code == Code::kNotFound);
  CHECK_FALSE(fs.stat("/none"));
}

TEST_CASE("a Hugging Face folder of anything but a model is refused") {
  MemoryFileSystem fs;
  const std::string source = save(fs, {{"a", {2, 2}}});
  for (const Part part : {Part::kOptim, Part::kOther}) {
    ConvertOptions options = convert_options(source, "/out", std::nullopt, "hf");
    options.selection.only = part;
    const Status status = status_of(fs, options);
    CHECK(status.code == Code::kInvalidArgument);
    CHECK_FALSE(fs.stat("/out"));
  }
  ConvertOptions options = convert_options(source, "/out", std::nullopt, "hf");
  options.selection.only = Part::kModel;
  convert(fs, options);
  CHECK(names_at(fs, "/out") == std::vector<std::string>{"a"});
}

}  // namespace transform_small_test
