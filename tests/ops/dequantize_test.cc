// Quantized weights as numbers: held against what the frameworks' own arithmetic gave of the samples,
// and, cut anywhere over ranks, against the formula itself.
#include "lib/ops/open/dequantize.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/format/safetensors.h>
#include <tessera/ops/diff.h>
#include <tessera/ops/show.h>
#include <tessera/ops/stat.h>
#include <tessera/reshard/tensor_reader.h>
#include <tessera/tensor/cast.h>

#include <catch2/catch.hpp>
#include <random>

#include "tests/support/convert_case.h"
#include "tests/support/inspect_case.h"
#include "tests/support/safetensors_file.h"
#include "tests/support/sample_case.h"

namespace dequantize_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

/// "float32 [4,5] <sha256>" of what `checked` of a sample's weights mean, in one type.
std::map<std::string, std::string> meant(const Value& expected, DType dtype) {
  std::map<std::string, std::string> out;
  const char* sum = dtype == DType::kFloat32 ? "sha256" : "bf16_sha256";
  for (const Value& weight : expected.find("dequantized")->as_list()) {
    std::vector<std::int64_t> extents;
    for (const Value& extent : weight.find("shape")->as_list()) extents.push_back(extent.as_int());
    out[weight.find("key")->as_string()] = fmt::format(
        "{} {} {}", torch_name(dtype), Shape(extents).to_string(), weight.find(sum)->as_string());
  }
  return out;
}

ConvertOptions dequantizing(const std::string& from, const std::string& to, DType dtype,
                            std::optional<std::int64_t> ranks = std::nullopt) {
  ConvertOptions options = convert_options(from, to, ranks, ranks ? "torch-dcp" : "safetensors");
  options.transform.dequantize = dtype;
  options.verify = true;
  return options;
}

/// Each expected weight, and every other tensor of the source that is no part of one.
void check_result(FileSystem& fs, const std::string& path, const SampleCase& sample, DType dtype) {
  const OpenedContent result = content_at(fs, path);
  std::map<std::string, std::string> wanted = expected_content(sample.expected);
  for (const Value& weight : sample.expected.find("dequantized")->as_list())
    for (const Value& part : weight.find("from")->as_list()) wanted.erase(part.as_string());
  std::erase_if(wanted, [](const auto& entry) {
    return entry.first.ends_with("input_scale") || entry.first.ends_with("weight_format");
  });
  for (const auto& [name, content] : meant(sample.expected, dtype)) wanted[name] = content;
  CHECK(result.tensors == wanted);
}

}  // namespace

TEST_CASE("quantized samples list and hash as they are stored") {
  for (const std::string& name : sample_names("quantized")) {
    INFO(name);
    const SampleCase sample(name);
    MemoryFileSystem fs;
    CHECK(content_at(fs, load_sample(fs, name)).tensors == expected_content(sample.expected));
  }
}

TEST_CASE("dequantized samples are what the frameworks' own arithmetic gives, at any sharding") {
  int checked = 0;
  for (const std::string& name : sample_names("quantized")) {
    INFO(name);
    const SampleCase sample(name);
    if (sample.expected.find("must_refuse_dequantise") != nullptr) continue;
    MemoryFileSystem fs;
    const std::string source = load_sample(fs, name);
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      const std::string out = fmt::format("/{}", torch_name(dtype));
      REQUIRE(convert(fs, dequantizing(source, out, dtype)).published);
      check_result(fs, out, sample, dtype);
    }
    REQUIRE(convert(fs, dequantizing(source, "/ranks", DType::kFloat32, 3)).published);
    check_result(fs, "/ranks", sample, DType::kFloat32);
    // And of a sharded source.
    REQUIRE(convert(fs, convert_options(source, "/cut", 5, "torch-dcp")).published);
    if (fs.stat("/source/config.json"))
      fs.write_file("/cut/config.json", fs.read_file("/source/config.json"));
    REQUIRE(convert(fs, dequantizing("/cut", "/joined", DType::kFloat32)).published);
    check_result(fs, "/joined", sample, DType::kFloat32);
    ++checked;
  }
  CHECK(checked >= 15);
}

TEST_CASE("a weight without its scale is a finding, and never dequantized") {
  MemoryFileSystem fs;
  const std::string source = load_sample(fs, "quantized/fp8_block_missing_scale");
  const std::string lone = "model.layers.0.mlp.up_proj.weight";
  CHECK(by_code(open_checkpoint(fs, source).manifest.notes)["CK062"] ==
        std::vector<std::string>{lone});
  const Status status = status_of(fs, dequantizing(source, "/out", DType::kBFloat16));
  CHECK(status.code == Code::kUnsupported);
  CHECK(status.context.tensor == lone);
  REQUIRE(convert(fs, convert_options(source, "/as_it_is", std::nullopt)).published);
  for (const std::string& name : sample_names("quantized")) {
    INFO(name);
    if (name.ends_with("missing_scale")) continue;
    CHECK(by_code(open_sample(name).manifest.notes).count("CK062") == 0);
  }
}

TEST_CASE("a weight that is selected, by either name, comes with what makes numbers of it") {
  int checked = 0;
  for (const std::string& name : sample_names("quantized")) {
    const SampleCase sample(name);
    if (sample.expected.find("must_refuse_dequantise") != nullptr) continue;
    const auto plain = meant(sample.expected, DType::kFloat32);
    for (const Value& weight : sample.expected.find("dequantized")->as_list()) {
      const std::string key = weight.find("key")->as_string();
      const std::string codes = weight.find("from")->as_list()[0].as_string();
      INFO(name << " " << key);
      MemoryFileSystem fs;
      const std::string source = load_sample(fs, name);
      ConvertOptions options = dequantizing(source, "/out", DType::kFloat32);
      for (const std::string& pattern : {key, codes}) {
        options.selection.include = {pattern};
        options.force = true;
        REQUIRE(convert(fs, options).published);
        CHECK(content_at(fs, "/out").tensors ==
              std::map<std::string, std::string>{{key, plain.at(key)}});
      }
      options.transform.dequantize.reset();
      REQUIRE(convert(fs, options).published);
      const auto stored = content_at(fs, "/out").tensors;
      for (const Value& part : weight.find("from")->as_list())
        CHECK(stored.contains(part.as_string()));
      // And goes with it.
      options.selection = {.exclude = {key}};
      if (status_of(fs, options).code == Code::kOk)
        for (const auto& [other, content] : content_at(fs, "/out").tensors)
          for (const Value& part : weight.find("from")->as_list()) CHECK(other != part.as_string());
      ++checked;
    }
  }
  CHECK(checked > 20);
}

TEST_CASE("a part that is left out of a selected weight is said") {
  MemoryFileSystem fs;
  const std::string source = load_sample(fs, "quantized/fp8_block_deepseek");
  const std::string weight = "model.layers.0.mlp.gate_proj.weight";
  ConvertOptions options = convert_options(source, "/out", std::nullopt, "safetensors");
  options.selection.include = {"*.mlp.*"};
  options.selection.exclude = {weight + "_scale_inv"};
  const ConvertReport report = convert(fs, options);
  REQUIRE(report.published);
  CHECK(by_code(report.notes)["CK062"] == std::vector<std::string>{weight});
  options.transform.dequantize = DType::kBFloat16;
  options.force = true;
  CHECK(status_of(fs, options).code == Code::kUnsupported);
}

TEST_CASE("parts that do not fit their codes are refused, also those of no elements") {
  struct Parts {
    const char* codes;
    const char* shape;
    int bytes;
    const char* scale;
    const char* scale_shape;
    int scale_bytes;
  };
  const Parts cases[] = {{"w", "17,1", 17, "w_scale", "1,0", 0},
                         {"w", "4,4", 16, "w_scale", "0,1", 0},
                         {"w", "4,4", 16, "w_scale", "0", 0},
                         {"w", "4,4", 16, "w_scale", "3,1", 12},
                         {"q._weight_qdata", "17,1", 17, "q._weight_scale", "1,0", 0}};
  for (const Parts& parts : cases) {
    INFO(parts.codes << " [" << parts.shape << "], scales [" << parts.scale_shape << "]");
    const int end = parts.scale_bytes + parts.bytes;
    const std::string header =
        fmt::format(R"({{"{}":{{"dtype":"F32","shape":[{}],"data_offsets":[0,{}]}},)"
                    R"("{}":{{"dtype":"F8_E4M3","shape":[{}],"data_offsets":[{},{}]}}}})",
                    parts.scale, parts.scale_shape, parts.scale_bytes, parts.codes, parts.shape,
                    parts.scale_bytes, end);
    MemoryFileSystem fs;
    const std::string data(static_cast<std::size_t>(end), '\1');
    fs.write_file("/q.safetensors", as_bytes(safetensors_of(header, data)));
    CHECK(status_of(fs, dequantizing("/q.safetensors", "/out", DType::kFloat32)).code ==
          Code::kUnsupported);
    CHECK_FALSE(fs.stat("/out"));
  }
}

TEST_CASE("numbers beside codes whose meaning is not known are not passed over") {
  // weight * scale alone would be other weights: Ascend's offsets, modelopt's scales of inputs.
  for (const char* beside : {"q.weight_offset", "q.pre_quant_scale"}) {
    CAPTURE(beside);
    const std::string header =
        fmt::format(R"({{"q.weight_scale":{{"dtype":"F32","shape":[4,1],"data_offsets":[0,16]}},)"
                    R"("{}":{{"dtype":"F32","shape":[4,1],"data_offsets":[16,32]}},)"
                    R"("q.weight":{{"dtype":"I8","shape":[4,4],"data_offsets":[32,48]}}}})",
                    beside);
    MemoryFileSystem fs;
    fs.write_file("/q.safetensors", as_bytes(safetensors_of(header, std::string(48, '\1'))));
    const Status status = status_of(fs, dequantizing("/q.safetensors", "/out", DType::kFloat32));
    CHECK(status.code == Code::kUnsupported);
    CHECK_THAT(status.message, Catch::Contains(beside));
    CHECK_FALSE(fs.stat("/out"));
  }
}

TEST_CASE("codes of fewer bits than their type has are not taken for whole ones") {
  // ChatGLM's int4: two codes in a byte, which nothing but config.json says.
  MemoryFileSystem fs;
  const std::string header =
      R"({"q.weight_scale":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},)"
      R"("q.weight":{"dtype":"I8","shape":[4,2],"data_offsets":[16,24]}})";
  fs.write_file("/q/model.safetensors", as_bytes(safetensors_of(header, std::string(24, '\1'))));
  CHECK(status_of(fs, dequantizing("/q", "/out", DType::kFloat32)).code == Code::kOk);
  fs.write_file("/q/config.json", as_bytes(R"({"quantization_bit": 4})"));
  CHECK(status_of(fs, dequantizing("/q", "/other", DType::kFloat32)).code == Code::kUnsupported);
}

TEST_CASE("blocks of a size that neither shapes nor config.json show are not guessed") {
  // 4 scales of 200 rows may be of 50 each, or of 64 with a smaller last one.
  struct Blocks {
    const char* scales;
    const char* config;
    bool is_read;
  };
  const char* groups =
      R"({"quantization_config": {"config_groups": {"group_0": {"weights": {"block_structure": [64, 64]}}}}})";
  const Blocks cases[] = {
      {"4,5", "", false},
      {"4,5", R"({"quantization_config": {"weight_block_size": [64, 64]}})", true},
      {"4,5", R"({"quantization_config": {"weight_block_size": [128, 128]}})", false},
      {"4,5", groups, true},
      {"4,5", R"({"quantization_config": {"config_groups": [1, {"weights": 2}]}})", false},
      {"2,3", "", true},
      {"2,3", R"({"quantization_config": {"weight_block_size": [64, 64]}})", false},
      {"200,1", R"({"quantization_config": {"weight_block_size": [64, 64]}})", true},
      {"200,3", "", false},
      {"25,1", "", true}};
  for (const Blocks& blocks : cases) {
    INFO(blocks.scales << " " << blocks.config);
    std::int64_t rows = 0, columns = 0;
    REQUIRE(std::sscanf(blocks.scales, "%ld,%ld", &rows, &columns) == 2);
    const std::int64_t begin = 4 * rows * columns, end = begin + 200 * 300;
    const std::string header =
        fmt::format(R"({{"w_scale_inv":{{"dtype":"F32","shape":[{}],"data_offsets":[0,{}]}},)"
                    R"("w":{{"dtype":"F8_E4M3","shape":[200,300],"data_offsets":[{},{}]}}}})",
                    blocks.scales, begin, begin, end);
    MemoryFileSystem fs;
    fs.write_file(
        "/q/model.safetensors",
        as_bytes(safetensors_of(header, std::string(static_cast<std::size_t>(end), '\1'))));
    if (*blocks.config != '\0') fs.write_file("/q/config.json", as_bytes(blocks.config));
    const Status status = status_of(fs, dequantizing("/q", "/out", DType::kFloat32));
    CHECK(status.code == (blocks.is_read ? Code::kOk : Code::kUnsupported));
    if (!blocks.is_read) CHECK_THAT(status.message, Catch::Contains("size of its blocks"));
  }
}

TEST_CASE("4-bit codes of bitsandbytes may lie in elements of several bytes") {
  // bnb_4bit_quant_storage: the same bytes under another type.
  MemoryFileSystem fs;
  const SampleCase sample("quantized/bnb_nf4");
  const std::string source = load_sample(fs, "quantized/bnb_nf4"),
                    file = source + "/model.safetensors";
  const Bytes stored = fs.read_file(file);
  const std::string text(as_text(stored));
  const auto length = static_cast<std::size_t>(load_le<std::uint64_t>(stored.data()));
  std::string header = text.substr(8, length);
  int changed = 0;
  for (const std::int64_t bytes : {768, 100, 8320}) {
    const std::string old = fmt::format(R"("dtype":"U8","shape":[{},1])", bytes);
    const std::size_t at = header.find(old);
    REQUIRE(at != header.npos);
    header.replace(at, old.size(), fmt::format(R"("dtype":"BF16","shape":[{},1])", bytes / 2));
    ++changed;
  }
  REQUIRE(changed == 3);
  fs.write_file(file, as_bytes(safetensors_of(header, text.substr(8 + length))));
  REQUIRE(convert(fs, dequantizing(source, "/out", DType::kFloat32)).published);
  check_result(fs, "/out", sample, DType::kFloat32);
}

TEST_CASE("groups of GPTQ whose size nothing shows are not guessed") {
  // 2 groups of 144 inputs may be of 72 each, or of 128 and a smaller one.
  const std::string header =
      R"({"q.scales":{"dtype":"F16","shape":[2,8],"data_offsets":[0,32]},)"
      R"("q.qzeros":{"dtype":"I32","shape":[2,1],"data_offsets":[32,40]},)"
      R"("q.qweight":{"dtype":"I32","shape":[18,8],"data_offsets":[40,616]}})";
  MemoryFileSystem fs;
  fs.write_file("/q/model.safetensors", as_bytes(safetensors_of(header, std::string(616, '\1'))));
  const Status status = status_of(fs, dequantizing("/q", "/out", DType::kFloat32));
  CHECK(status.code == Code::kUnsupported);
  CHECK_THAT(status.message, Catch::Contains("group_size"));
  const char* config =
      R"({"text_config": {"quantization_config": {"bits": 4, "group_size": 128}}})";
  fs.write_file("/q/config.json", as_bytes(config));
  ConvertOptions options = dequantizing("/q", "/out", DType::kFloat32);
  options.copy_assets = true;
  REQUIRE(convert(fs, options).published);
  CHECK(std::string(as_text(fs.read_file("/out/config.json"))) == R"({"text_config": {}})");
}

TEST_CASE("packed integers of a width that is not read are called so") {
  const std::string header =
      R"({"q.weight_scale":{"dtype":"F32","shape":[3,1],"data_offsets":[0,12]},)"
      R"("q.weight_shape":{"dtype":"I64","shape":[2],"data_offsets":[12,28]},)"
      R"("q.weight_packed":{"dtype":"I32","shape":[3,1],"data_offsets":[28,40]}})";
  std::string data(40, '\0');
  data[12] = 3;
  data[20] = 6;  // six codes: of 4 bits or of 5, one word holds them
  MemoryFileSystem fs;
  fs.write_file("/q/model.safetensors", as_bytes(safetensors_of(header, data)));
  CHECK(status_of(fs, dequantizing("/q", "/out", DType::kFloat32)).code == Code::kOk);
  fs.write_file("/q/config.json", as_bytes(R"({"quantization_config": {"config_groups": {)"
                                           R"("group_0": {"weights": {"num_bits": 5}}}}})"));
  const Status status = status_of(fs, dequantizing("/q", "/other", DType::kFloat32));
  CHECK(status.code == Code::kUnsupported);
  CHECK_THAT(status.message, Catch::Contains("5 bits"));
}

TEST_CASE("scales of stacked experts go by the name of the experts' codes") {
  MemoryFileSystem fs;
  const std::string header =
      R"({"e.down_proj_weight_scale":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
      R"("e.down_proj_input_scale":{"dtype":"F32","shape":[2],"data_offsets":[8,16]},)"
      R"("e.down_proj":{"dtype":"F8_E4M3","shape":[2,2,2],"data_offsets":[16,24]}})";
  const float scales[] = {2, 3, 9, 9};
  std::string data(reinterpret_cast<const char*>(scales), sizeof scales);
  data += std::string(8, '\x38');  // 1.0
  fs.write_file("/q.safetensors", as_bytes(safetensors_of(header, data)));
  REQUIRE(convert(fs, dequantizing("/q.safetensors", "/out", DType::kFloat32)).published);
  OpenedCheckpoint plain = open_checkpoint(fs, "/out");
  CHECK(leaf_tensors(plain.manifest).size() == 1);
  CHECK(plain.read<float>("e.down_proj") == std::vector<float>{2, 2, 2, 2, 3, 3, 3, 3});
  ConvertOptions cast = convert_options("/q.safetensors", "/cast", std::nullopt, "safetensors");
  cast.transform.dtype = DType::kBFloat16;
  REQUIRE(convert(fs, cast).published);
  CHECK(content_at(fs, "/cast").tensors == content_at(fs, "/q.safetensors").tensors);
}

TEST_CASE("rules and --vocab-size never part codes from their scales") {
  // Each expert has scales of its own: stacked codes without them are no weights.
  MemoryFileSystem fs;
  std::string header = "{", data;
  const auto add = [&](const std::string& name, const char* type, const char* shape, int bytes) {
    header += fmt::format(R"({}"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                          data.empty() ? "" : ",", name, type, shape, data.size(),
                          data.size() + static_cast<std::size_t>(bytes));
    data += std::string(static_cast<std::size_t>(bytes), '\1');
  };
  for (const char* expert : {"0", "1"})
    for (const char* part : {"w1", "w2", "w3"}) {
      const std::string name =
          fmt::format("model.layers.0.block_sparse_moe.experts.{}.{}.weight", expert, part);
      add(name + "_scale_inv", "F32", "1,1", 4);
      add(name, "F8_E4M3", "4,4", 16);
    }
  add("model.embed_tokens.weight_scale", "F32", "8,1", 32);
  add("model.embed_tokens.weight", "I8", "8,4", 32);
  fs.write_file("/q/model.safetensors", as_bytes(safetensors_of(header + "}", data)));
  ConvertOptions options = convert_options("/q", "/out", std::nullopt, "safetensors");
  options.transform.rules = RulesRequest{.name = "mixtral", .side = "stacked"};
  Status status = status_of(fs, options);
  CHECK(status.code == Code::kUnsupported);
  CHECK_THAT(status.message, Catch::Contains("which is quantized, without"));
  CHECK_THAT(status.hint, Catch::Contains("--dequantize"));
  options.transform.dequantize = DType::kBFloat16;
  CHECK(status_of(fs, options).code == Code::kOk);
  options = convert_options("/q", "/other", std::nullopt, "safetensors");
  options.transform.vocab_size = 16;
  CHECK(status_of(fs, options).code == Code::kUnsupported);
  options.transform.dequantize = DType::kBFloat16;
  CHECK(status_of(fs, options).code == Code::kOk);
}

TEST_CASE("renames that part codes from their scales are warned of") {
  MemoryFileSystem fs;
  const std::string source = load_sample(fs, "quantized/fp8_block_deepseek");
  const auto warned = [&](const char* rules, const char* to) {
    ConvertOptions options = convert_options(source, to, std::nullopt, "safetensors");
    options.names.map = parse_name_map(rules);
    return by_code(convert(fs, options).notes)["CK062"].size();
  };
  CHECK(warned("model.layers.0.mlp.gate_proj.* layers.0.w1.*", "/both") == 0);
  CHECK(warned("model.layers.0.mlp.gate_proj.weight layers.0.w1.weight", "/codes") == 1);
}

TEST_CASE("MXFP8 has a power of two for each 32 of a row") {
  MemoryFileSystem fs;
  const std::string header =
      R"({"q.weight_scale":{"dtype":"U8","shape":[1,2],"data_offsets":[0,2]},)"
      R"("q.weight":{"dtype":"F8_E4M3","shape":[1,64],"data_offsets":[2,66]}})";
  const std::string data = std::string("\x80\x7e", 2) + std::string(64, '\x38');
  fs.write_file("/q.safetensors", as_bytes(safetensors_of(header, data)));
  REQUIRE(convert(fs, dequantizing("/q.safetensors", "/out", DType::kFloat32)).published);
  std::vector<float> wanted(64, 0.5F);
  std::fill_n(wanted.begin(), 32, 2.0F);
  CHECK(open_checkpoint(fs, "/out").read<float>("q.weight") == wanted);
}

TEST_CASE("weights that are objects of torchao's classes become plain ones") {
  MemoryFileSystem fs;
  const std::string source = load_sample(fs, "torchao/weights");
  ConvertOptions options = dequantizing(source, "/out.pt", DType::kBFloat16);
  options.to = "torch-save";
  Status status = status_of(fs, options);  // of two classes the arithmetic is not known
  CHECK(status.code == Code::kUnsupported);
  CHECK_THAT(status.message, Catch::Contains("NF4Tensor"));
  options.selection.exclude = {"nf4.weight", "int4.weight"};
  REQUIRE(convert(fs, options).published);
  OpenedCheckpoint stored = open_checkpoint(fs, source), plain = open_checkpoint(fs, "/out.pt");
  CHECK(leaf_tensors(plain.manifest).size() == 6);
  for (const std::string name : {"int8.weight", "float8.weight", "intx.weight"}) {
    INFO(name);
    std::vector<float> numbers = stored.read<float>(name + "#qdata");
    const std::vector<float> scales = stored.read<float>(name + "#scale");
    REQUIRE(scales.size() == 16);
    std::vector<float> zeros(16);
    if (name != "float8.weight") zeros = stored.read<float>(name + "#zero_point");
    for (std::size_t i = 0; i < numbers.size(); ++i)
      numbers[i] = (numbers[i] - zeros[i / 64]) * scales[i / 64];
    std::vector<std::uint16_t> rounded(numbers.size());
    cast_elements(DType::kFloat32, std::as_bytes(std::span(numbers)), DType::kBFloat16,
                  std::as_writable_bytes(std::span(rounded)));
    cast_elements(DType::kBFloat16, std::as_bytes(std::span(rounded)), DType::kFloat32,
                  std::as_writable_bytes(std::span(numbers)));
    CHECK(plain.tensor(name).spec == TensorSpec{DType::kBFloat16, Shape({16, 64})});
    CHECK(plain.read<float>(name) == numbers);
  }
  options.to = "hf";
  options.destination = "/hf";
  REQUIRE(convert(fs, options).published);
  CHECK(content_at(fs, "/hf").tensors == content_at(fs, "/out.pt").tensors);
}

TEST_CASE("without quantized weights there is nothing to dequantize") {
  MemoryFileSystem fs;
  const std::string source = load_sample(fs, "dcp/fsdp2_w2");
  CHECK(status_of(fs, dequantizing(source, "/out", DType::kBFloat16)).code ==
        Code::kInvalidArgument);
}

TEST_CASE("show, stat and diff look at what codes mean") {
  MemoryFileSystem fs;
  const std::string source = load_sample(fs, "quantized/mxfp4_gpt_oss");
  REQUIRE(convert(fs, dequantizing(source, "/plain", DType::kFloat32)).published);
  const std::string name = "model.layers.0.mlp.experts.down_proj";
  OpenedCheckpoint quantized = open_checkpoint(fs, source), plain = open_checkpoint(fs, "/plain");
  DiffOptions differ;
  CHECK_FALSE(diff_checkpoints(quantized, plain, differ).equal);
  differ.dequantized = true;
  quantized = open_checkpoint(fs, source);
  CHECK(diff_checkpoints(quantized, plain, differ).equal);
  ShowOptions look;
  look.dequantized = true;
  quantized = open_checkpoint(fs, source);
  const ShowReport shown = show(quantized, name, look);
  CHECK(shown.values == show(plain, name, {}).values);
  StatOptions numbers;
  numbers.dequantized = true;
  quantized = open_checkpoint(fs, source);
  const StatReport a = stat_checkpoint(quantized, numbers), b = stat_checkpoint(plain, {});
  REQUIRE(a.tensors.size() == b.tensors.size());
  for (const TensorStat& stat : a.tensors)
    for (const TensorStat& same : b.tensors)
      if (stat.name == same.name) CHECK(stat.l2 == same.l2);
}

TEST_CASE("config.json says that the result is not quantized") {
  MemoryFileSystem fs;
  const std::string source = load_sample(fs, "quantized/fp8_block_deepseek");
  ConvertOptions options = dequantizing(source, "/out", DType::kFloat32);
  options.copy_assets = true;
  REQUIRE(convert(fs, options).published);
  const Bytes text = fs.read_file("/out/config.json");
  const Value config = parse_json(text);
  CHECK(config.find("quantization_config") == nullptr);
  CHECK(config.find("torch_dtype")->as_string() == "float32");
  CHECK(config.find("model_type")->as_string() == "deepseek_v3");
}

TEST_CASE("blocks of any shape, cut anywhere, are the formula's numbers") {
  std::mt19937 random(7);
  const auto below = [&](int n) {
    return static_cast<std::int64_t>(random() % static_cast<unsigned>(n));
  };
  for (int round = 0; round < 12; ++round) {
    const std::int64_t rows = 1 + below(300), columns = 1 + below(300);
    const std::int64_t tall = (rows + 127) / 128, wide = (columns + 127) / 128;
    INFO(rows << "x" << columns);
    std::string codes(static_cast<std::size_t>(rows * columns), '\0');
    for (char& code : codes)
      while ((static_cast<unsigned char>(code = static_cast<char>(random())) & 0x7F) == 0x7F) {
      }
    std::vector<float> scales(static_cast<std::size_t>(tall * wide));
    for (float& scale : scales) scale = static_cast<float>(1 + below(1000)) / 997.0F;
    const std::string scale_bytes(reinterpret_cast<const char*>(scales.data()), scales.size() * 4);
    MemoryFileSystem fs;
    fs.make_directories("/in");
    const std::string header =
        fmt::format(R"({{"w":{{"dtype":"F8_E4M3","shape":[{},{}],"data_offsets":[{},{}]}},)"
                    R"("w_scale_inv":{{"dtype":"F32","shape":[{},{}],"data_offsets":[0,{}]}}}})",
                    rows, columns, scale_bytes.size(), scale_bytes.size() + codes.size(), tall,
                    wide, scale_bytes.size());
    fs.write_file("/in/model.safetensors", as_bytes(safetensors_of(header, scale_bytes + codes)));
    std::vector<float> wanted(codes.size());
    cast_elements(DType::kFloat8E4M3Fn, as_bytes(codes), DType::kFloat32,
                  std::as_writable_bytes(std::span(wanted)));
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < columns; ++c)
        wanted[static_cast<std::size_t>(r * columns + c)] *=
            scales[static_cast<std::size_t>(r / 128 * wide + c / 128)];
    ConvertOptions options =
        dequantizing("/in/model.safetensors", "/out", DType::kFloat32, 1 + below(6));
    options.target.placements = {{"w", {Placement::shard(static_cast<int>(below(2)))}}};
    options.memory_limit_bytes = std::uint64_t{1} << 20;
    REQUIRE(convert(fs, options).published);
    OpenedCheckpoint result = open_checkpoint(fs, "/out");
    result.locate_all({});
    std::vector<float> got(wanted.size());
    const std::uint32_t index = leaf_tensors(result.manifest).at(0);
    TensorReader(result.manifest, *result.directory, {})
        .read(index, 0, rows * columns, std::as_writable_bytes(std::span(got)));
    CHECK(got == wanted);
    // A part of it, as a reader of the view takes it.
    OpenedCheckpoint view = open_checkpoint(fs, "/in/model.safetensors");
    CHECK(view_dequantized(view, {}).empty());
    const std::int64_t begin = below(static_cast<int>(rows * columns));
    const std::int64_t end = begin + 1 + below(static_cast<int>(rows * columns - begin));
    std::vector<float> part(static_cast<std::size_t>(end - begin));
    TensorReader(view.manifest, *view.directory, {})
        .read(leaf_tensors(view.manifest).at(0), begin, end,
              std::as_writable_bytes(std::span(part)));
    CHECK(std::equal(part.begin(), part.end(), wanted.begin() + begin));
  }
}

}  // namespace dequantize_test
