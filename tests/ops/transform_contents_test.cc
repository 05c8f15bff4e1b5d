// Types, vocabulary, ties, maps and flags that match nothing, through whole conversions.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/format/safetensors.h>
#include <tessera/ops/hash.h>
#include <tessera/reshard/tensor_reader.h>
#include <tessera/tensor/cast.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <fstream>
#include <sstream>

#include "tests/support/convert_case.h"
#include "tests/support/note_text.h"
#include "tests/support/safetensors_file.h"

namespace transform_contents_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

std::string load_state(MemoryFileSystem& fs, const std::string& name) {
  std::ifstream stream(std::string(TESSERA_SOURCE_DIR) + "/tests/ops/data/rules/" + name + ".pt",
                       std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  fs.make_directories("/in");
  const std::string path = "/in/" + name + ".pt";
  fs.write_file(path, as_bytes(text.str()));
  return path;
}

struct Loaded {
  TensorSpec spec;
  Bytes bytes;
};

std::map<std::string, Loaded> tensors_at(FileSystem& fs, const std::string& path) {
  OpenedCheckpoint checkpoint = open_checkpoint(fs, path);
  checkpoint.locate_all({});
  const TensorReader reader(checkpoint.manifest, *checkpoint.directory, {});
  std::map<std::string, Loaded> out;
  for (const std::uint32_t i : leaf_tensors(checkpoint.manifest)) {
    const StoredTensor& tensor = checkpoint.manifest.tensors[i];
    Loaded& loaded = out[tensor.name];
    loaded.spec = tensor.spec;
    loaded.bytes.resize(static_cast<std::size_t>(tensor.spec.size_bytes()));
    reader.read(i, 0, tensor.spec.shape.numel(), loaded.bytes);
  }
  return out;
}

Code code_of(MemoryFileSystem& fs, const ConvertOptions& options, std::string* message = nullptr) {
  try {
    convert(fs, options);
  } catch (const Error& error) {
    if (message != nullptr) *message = error.what();
    return error.code();
  }
  return Code::kOk;
}

}  // namespace

TEST_CASE("dtype casts model weights, patterns decide otherwise, the optimizer stays") {
  MemoryFileSystem fs;
  const std::string source = load_state(fs, "llama.hf");
  const auto before = tensors_at(fs, source);
  ConvertOptions options = convert_options(source, "/out", 3, "torch-dcp");
  options.transform.dtype = DType::kBFloat16;
  options.transform.keep_dtypes = {parse_keep_dtype("*layernorm*=keep"),
                                   parse_keep_dtype("*.lm_head.weight.exp_avg=fp16")};
  options.verify = true;
  const ConvertReport report = convert(fs, options);
  CHECK(report.verified);
  CHECK(report.transformations.size() == 2);
  std::uint64_t tensors = 0;
  std::int64_t more = 0;
  for (const DTypeTotal& total : report.dtypes) {
    tensors += total.tensors_before;
    more += static_cast<std::int64_t>(total.tensors_after) -
            static_cast<std::int64_t>(total.tensors_before);
  }
  CHECK(tensors == report.tensors);
  CHECK(more == 0);  // no tensor is lost on the way
  const auto bf16 = std::ranges::find(report.dtypes, DType::kBFloat16, &DTypeTotal::dtype);
  REQUIRE(bf16 != report.dtypes.end());
  CHECK(bf16->tensors_after > bf16->tensors_before);
  std::uint64_t told = 0;
  for (const AppliedTransformation& applied : report.transformations)
    if (applied.detail == "float32 -> bfloat16") told = applied.tensors;
  CHECK(bf16->tensors_after - bf16->tensors_before == told);
  const auto after = tensors_at(fs, "/out");
  REQUIRE(after.size() == before.size());
  std::size_t cast = 0;
  for (const auto& [name, loaded] : before) {
    INFO(name);
    DType expected = loaded.spec.dtype;
    if (name.starts_with("model.") && name.find("layernorm") == std::string::npos)
      expected = DType::kBFloat16;
    if (name.ends_with("lm_head.weight.exp_avg")) expected = DType::kFloat16;
    const Loaded& now = after.at(name);
    REQUIRE(now.spec.dtype == expected);
    Bytes wanted(now.bytes.size());
    cast_elements(loaded.spec.dtype, loaded.bytes, expected, wanted);
    CHECK(now.bytes == wanted);
    cast += expected != loaded.spec.dtype;
  }
  CHECK(cast > 10);
}

TEST_CASE("elements that did not fit their new type are warned of, the worst tensors by name") {
  Manifest manifest;
  for (const char* name : {"a", "b", "c"}) {
    StoredTensor tensor;
    tensor.name = name;
    tensor.spec = {DType::kFloat16, {10, 10}};
    manifest.tensors.push_back(tensor);
  }
  CHECK(cast_notes(manifest, {{0, {}}, {1, {}}}).empty());
  const auto notes = cast_notes(manifest, {{0, {2, 0}}, {1, {0, 5}}, {2, {40, 1}}});
  REQUIRE(notes.size() == 3);
  CHECK(notes[0].tensor == "c");
  CHECK(notes[0].severity == Severity::kWarning);
  CHECK_THAT(notes[0].message, Catch::StartsWith("40 of 100 elements"));
  CHECK(notes[1].tensor == "a");
  CHECK_THAT(notes[2].message, Catch::StartsWith("6 elements"));
}

TEST_CASE("vocabulary rows are padded with zeros and cut again, moments alike") {
  MemoryFileSystem fs;
  const std::string source = load_state(fs, "qwen2.hf");
  const auto before = tensors_at(fs, source);
  ConvertOptions options = convert_options(source, "/padded", 4, "torch-dcp");
  options.transform.vocab_size = 16;
  options.verify = true;
  CHECK(convert(fs, options).verified);
  const auto padded = tensors_at(fs, "/padded");
  const Loaded& old = before.at("model.lm_head.weight");
  const Loaded& fresh = padded.at("model.lm_head.weight");
  CHECK(fresh.spec.shape == Shape{16, 8});
  CHECK(std::equal(old.bytes.begin(), old.bytes.end(), fresh.bytes.begin()));
  CHECK(std::all_of(fresh.bytes.begin() + static_cast<std::ptrdiff_t>(old.bytes.size()),
                    fresh.bytes.end(), [](std::byte b) { return b == std::byte{0}; }));
  std::size_t moments = 0;
  for (const auto& [name, loaded] : padded)
    moments += name.find("exp_avg") != std::string::npos && loaded.spec.shape == Shape{16, 8};
  CHECK(moments == 4);
  // Twice is once; and back.
  options = convert_options("/padded", "/again", 2, "torch-dcp");
  options.transform.vocab_size = 16;
  convert(fs, options);
  CHECK(tensors_at(fs, "/again").at("model.lm_head.weight").bytes == fresh.bytes);
  options = convert_options("/again", "/cut", 2, "torch-dcp");
  options.transform.vocab_size = 10;
  const ConvertReport report = convert(fs, options);
  for (const Note& note : report.notes) CHECK(note_code(note) != "VOCAB");
  CHECK(content_at(fs, "/cut").tensors == content_at(fs, source).tensors);
  options = convert_options("/cut", "/short", 2, "torch-dcp");
  options.transform.vocab_size = 7;
  const ConvertReport lossy = convert(fs, options);
  CHECK(std::ranges::any_of(lossy.notes, [](const Note& note) {
    return note_code(note) == "VOCAB" && note.message.starts_with("3 of the 3 rows");
  }));
}

TEST_CASE("tied weights: kept, dropped by bytes, or refused") {
  MemoryFileSystem fs;
  const std::string source = load_sample(fs, "torchsave/sgd_tied_zip");
  const std::size_t all = tensors_at(fs, source).size();
  ConvertOptions options = convert_options(source, "/kept", 2, "torch-dcp");
  CHECK(convert(fs, options).dropped.empty());
  CHECK(tensors_at(fs, "/kept").size() == all);
  std::string message;
  options = convert_options(source, "/refused", 2, "torch-dcp");
  options.transform.tied = TiedPolicy::kError;
  CHECK(code_of(fs, options, &message) == Code::kUnsupported);
  CHECK_THAT(message, Catch::Contains("one tensor under two names"));
  // From copies as well: a DCP stores both names with bytes of their own.
  for (const std::string& from : {source, std::string("/kept")}) {
    options = convert_options(from, "/dropped" + std::to_string(from.size()), 2, "torch-dcp");
    options.transform.tied = TiedPolicy::kDrop;
    options.verify = true;
    const ConvertReport report = convert(fs, options);
    CHECK(report.verified);
    REQUIRE(report.dropped.size() == 1);
    REQUIRE(report.transformations.size() == 1);
    CHECK(report.transformations[0].kind == "tied");
    const auto left = tensors_at(fs, options.destination);
    CHECK(left.size() == all - 1);
    CHECK_FALSE(left.contains(report.dropped[0]));
  }
  // Equal types and shapes alone are no tie.
  options = convert_options(load_state(fs, "llama.hf"), "/apart", 2, "torch-dcp");
  options.transform.tied = TiedPolicy::kDrop;
  CHECK(convert(fs, options).dropped.empty());
}

TEST_CASE("the hub's files keep what is equal and that no loader ties again") {
  // A model grown out of another one repeats layers and experts.
  MemoryFileSystem fs;
  const char* names[] = {"lm_head.weight",
                         "model.embed_tokens.weight",
                         "model.layers.0.mlp.experts.0.up.weight",
                         "model.layers.0.mlp.experts.1.up.weight",
                         "model.layers.0.q.weight",
                         "model.layers.1.q.weight",
                         "model.layers.2.embed_tokens.weight"};
  std::string header = "{", data;
  for (const char* name : names) {
    header += fmt::format(R"({}"{}":{{"dtype":"U8","shape":[2,4],"data_offsets":[{},{}]}})",
                          data.empty() ? "" : ",", name, data.size(), data.size() + 8);
    const std::string_view text = name;
    data += text.find("experts") != text.npos ? "expertup"
            : text.find(".q.") != text.npos   ? "qqqqrrrr"
                                              : "embedded";
  }
  fs.write_file("/m/model.safetensors", as_bytes(safetensors_of(header + "}", data)));
  ConvertOptions options = convert_options("/m", "/hf", std::nullopt, "hf");
  CHECK(convert(fs, options).dropped == std::vector<std::string>{"lm_head.weight"});
  CHECK(tensors_at(fs, "/hf").size() == 6);
  options = convert_options("/m", "/asked", std::nullopt, "hf");
  options.transform.tied = TiedPolicy::kDrop;
  CHECK(convert(fs, options).dropped.size() == 4);
  fs.write_file("/m/config.json", as_bytes(R"({"tie_word_embeddings": false})"));
  options = convert_options("/m", "/untied", std::nullopt, "hf");
  CHECK(convert(fs, options).dropped.empty());
  CHECK(tensors_at(fs, "/untied").size() == 7);
  const std::string t5 =
      R"({"decoder.embed_tokens.weight":{"dtype":"U8","shape":[2,4],"data_offsets":[0,8]},)"
      R"("shared.weight":{"dtype":"U8","shape":[2,4],"data_offsets":[8,16]}})";
  fs.write_file("/t5/model.safetensors", as_bytes(safetensors_of(t5, "embeddedembedded")));
  options = convert_options("/t5", "/t5.hf", std::nullopt, "hf");
  CHECK(convert(fs, options).dropped == std::vector<std::string>{"decoder.embed_tokens.weight"});
}

TEST_CASE("flags whose patterns match nothing are refused by name") {
  MemoryFileSystem fs;
  const std::string source = load_state(fs, "llama.hf");
  std::string message;
  ConvertOptions options = convert_options(source, "/out", 2, "torch-dcp");
  SECTION("keep-dtype") {
    options.transform.keep_dtypes = {parse_keep_dtype("model.nothing*=fp32")};
    CHECK(code_of(fs, options, &message) == Code::kInvalidArgument);
    CHECK_THAT(message, Catch::Contains("--keep-dtype"));
  }
  SECTION("keep-dtype of what is never cast") {
    options.transform.dtype = DType::kBFloat16;
    options.transform.keep_dtypes = {parse_keep_dtype("*.step=fp32")};
    CHECK(code_of(fs, options, &message) == Code::kInvalidArgument);
    CHECK_THAT(message, Catch::Contains("\"*.step\" casts nothing"));
  }
  SECTION("more rows than a tensor can have") {
    options.transform.vocab_size = std::int64_t{9} << 60;
    CHECK(code_of(fs, options, &message) == Code::kInvalidArgument);
    CHECK_THAT(message, Catch::Contains("--vocab-size") && Catch::Contains("larger"));
  }
  SECTION("strict-rules without rules") {
    options.transform.strict_rules = true;
    CHECK(code_of(fs, options, &message) == Code::kInvalidArgument);
    CHECK_THAT(message, Catch::Contains("--strict-rules needs --rules"));
  }
  SECTION("vocab-tensor") {
    options.transform.vocab_size = 16;
    options.transform.vocab_tensors = {"nothing"};
    CHECK(code_of(fs, options, &message) == Code::kInvalidArgument);
    CHECK_THAT(message, Catch::Contains("--vocab-tensor"));
  }
  SECTION("replicate") {
    options.target.replicate = {"nothing*"};
    CHECK(code_of(fs, options, &message) == Code::kInvalidArgument);
    CHECK_THAT(message, Catch::Contains("--replicate"));
  }
  SECTION("placements") {
    options.target.world_size.reset();
    options.target.mesh = Mesh::parse("dp=2");
    options.target.placements = {{"nothing*", Placement::parse_list("shard(0)")}};
    CHECK(code_of(fs, options, &message) == Code::kInvalidArgument);
    CHECK_THAT(message, Catch::Contains("--placements"));
  }
  SECTION("a size for files that are not cut by size") {
    options.own.set(kMaxShardSizeFlag, 1000);
    CHECK(code_of(fs, options, &message) == Code::kInvalidArgument);
    CHECK_THAT(message, Catch::Contains("--max-shard-size"));
  }
  CHECK_FALSE(fs.stat("/out"));
}

TEST_CASE("types are those that elements are cast to") {
  CHECK(parse_float_type("--dtype", "bf16") == DType::kBFloat16);
  CHECK(parse_float_type("--dtype", "float32") == DType::kFloat32);
  CHECK_THROWS_AS(parse_float_type("--dtype", "int8"), Error);
  CHECK_THROWS_AS(parse_float_type("--dtype", "bfloat"), Error);
  CHECK_THROWS_AS(parse_keep_dtype("a"), Error);
  CHECK_THROWS_AS(parse_keep_dtype("=bf16"), Error);
  CHECK_FALSE(parse_keep_dtype("a*=keep").dtype.has_value());
}

TEST_CASE("patterns of a name map rename like those of rename; prefixes are whole components") {
  MemoryFileSystem fs;
  const std::string source = load_state(fs, "llama.hf");
  ConvertOptions options = convert_options(source, "/out.pt", std::nullopt);
  options.names.map = parse_name_map("model.layers.*  h.*\nlm_head.weight head.weight\n");
  const ConvertReport report = convert(fs, options);
  REQUIRE(report.transformations.size() == 1);
  CHECK(report.transformations[0].kind == "rename");
  const auto after = tensors_at(fs, "/out.pt");
  CHECK(after.contains("model.h.0.mlp.up_proj.weight"));
  CHECK(after.contains("optim.state.head.weight.exp_avg"));
  ConvertOptions prefix = convert_options(source, "/no.pt", std::nullopt);
  prefix.names.strip_prefix = "mod";
  CHECK(code_of(fs, prefix) == Code::kInvalidArgument);
}
TEST_CASE("a Hugging Face folder keeps lm_head, whatever its other names begin with") {
  MemoryFileSystem fs;
  const std::string source = load_state(fs, "llama.hf");
  ConvertOptions options = convert_options(source, "/hf", std::nullopt, "hf");
  convert(fs, options);
  const auto first = tensors_at(fs, "/hf");
  REQUIRE(first.contains("lm_head.weight"));
  REQUIRE(first.contains("model.norm.weight"));
  options = convert_options("/hf", "/half", std::nullopt, "hf");
  options.transform.dtype = DType::kBFloat16;
  convert(fs, options);
  const auto half = tensors_at(fs, "/half");
  REQUIRE(half.size() == first.size());
  for (const auto& [name, loaded] : half) CHECK(loaded.spec.dtype == DType::kBFloat16);
  CHECK(half.contains("model.norm.weight"));
  options = convert_options("/hf", "/megatron", 2, "torch-dcp");
  options.transform.rules = parse_rules_flag("llama,heads=4,groups=2");
  convert(fs, options);
  const auto megatron = tensors_at(fs, "/megatron");
  CHECK(megatron.contains("decoder.layers.1.self_attention.linear_qkv.weight"));
  CHECK(megatron.contains("output_layer.weight"));
}

}  // namespace transform_contents_test
