// Plain weights as codes and scales: held against what torchao, compressed-tensors and DeepSeek's
// formula in PyTorch make of the samples, at any sharding, and back.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/encoding/json.h>
#include <tessera/reshard/tensor_reader.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "lib/state/block_quantizer.h"
#include "tests/support/convert_case.h"
#include "tests/support/inspect_case.h"
#include "tests/support/safetensors_file.h"
#include "tests/support/sample_case.h"

namespace quantize_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

constexpr std::array kSchemes = {std::pair("fp8-block", BlockScheme::kFp8),
                                 std::pair("mxfp4", BlockScheme::kMxfp4),
                                 std::pair("nvfp4", BlockScheme::kNvfp4)};

ConvertOptions quantizing(const std::string& from, const std::string& to, BlockScheme scheme,
                          std::optional<std::int64_t> ranks = std::nullopt) {
  ConvertOptions options = convert_options(from, to, ranks, ranks ? "torch-dcp" : "safetensors");
  options.transform.quantize = scheme;
  options.verify = true;
  return options;
}

ConvertOptions back(const std::string& from, const std::string& to) {
  ConvertOptions options = convert_options(from, to, std::nullopt, "safetensors");
  options.transform.dequantize = DType::kFloat32;
  return options;
}

std::map<std::string, std::string> listed(const Value& expected, const char* key) {
  return expected_content(Value::dict({{Value::string("tensors"), *expected.find(key)}}));
}

std::vector<std::string> warned(const ConvertReport& report) {
  std::vector<std::string> names;
  for (const Note& note : report.notes)
    if (note.code == Finding::kCast && note.severity == Severity::kWarning)
      names.push_back(note.tensor);
  return names;
}

Value config_at(MemoryFileSystem& fs, const std::string& folder) {
  return parse_json(fs.read_file(folder + "/config.json"));
}

}  // namespace

TEST_CASE(
    "quantized weights are bit for bit the libraries' own, at any sharding, and so is the way "
    "back") {
  int checked = 0;
  for (const std::string name : {"safetensors/to_quantize", "safetensors/to_quantize_experts"}) {
    const SampleCase sample(name);
    MemoryFileSystem fs;
    const std::string source = load_sample(fs, name);
    REQUIRE(convert(fs, convert_options(source, "/cut", 5, "torch-dcp")).published);
    for (const auto& [scheme, value] : kSchemes) {
      const Value* expected = sample.expected.find("quantized")->find(scheme);
      if (expected == nullptr) continue;
      INFO(name << " " << scheme);
      const auto tensors = listed(*expected, "tensors"), plain = listed(*expected, "dequantized");
      const std::string out = fmt::format("/{}", scheme);
      const ConvertReport report = convert(fs, quantizing(source, out, value));
      REQUIRE(report.published);
      CHECK(report.verified);
      CHECK(content_at(fs, out).tensors == tensors);
      REQUIRE(convert(fs, quantizing(source, out + "_ranks", value, 3)).published);
      CHECK(content_at(fs, out + "_ranks").tensors == tensors);
      REQUIRE(convert(fs, quantizing("/cut", out + "_joined", value)).published);
      CHECK(content_at(fs, out + "_joined").tensors == tensors);
      for (const std::string& from : {out, out + "_ranks"}) {
        REQUIRE(convert(fs, back(from, from + "_back")).published);
        CHECK(content_at(fs, from + "_back").tensors == plain);
      }
      ++checked;
    }
  }
  CHECK(checked == 4);
}

TEST_CASE(
    "MXFP4 that was dequantized is quantized to the same numbers, whichever way experts lie") {
  MemoryFileSystem fs;
  const std::string source = load_sample(fs, "quantized/mxfp4_gpt_oss");
  REQUIRE(convert(fs, back(source, "/plain")).published);
  REQUIRE(convert(fs, quantizing("/plain", "/again", BlockScheme::kMxfp4)).published);
  REQUIRE(convert(fs, back("/again", "/again_plain")).published);
  CHECK(content_at(fs, "/again_plain").tensors == content_at(fs, "/plain").tensors);
}

TEST_CASE("what does not fit the groups stays, and is said") {
  MemoryFileSystem fs;
  const std::string source = load_sample(fs, "safetensors/to_quantize");
  const std::string layer = "model.layers.0.";
  CHECK(warned(convert(fs, quantizing(source, "/a", BlockScheme::kFp8))).empty());
  CHECK(warned(convert(fs, quantizing(source, "/b", BlockScheme::kNvfp4))) ==
        std::vector{layer + "odd_proj.weight"});
  CHECK(warned(convert(fs, quantizing(source, "/c", BlockScheme::kMxfp4))) ==
        std::vector{layer + "self_attn.o_proj.weight", layer + "odd_proj.weight"});
  const ConvertReport report = convert(fs, quantizing(source, "/d", BlockScheme::kNvfp4));
  REQUIRE(report.transformations.size() == 1);
  CHECK(report.transformations[0].kind == "quantize");
  CHECK(report.transformations[0].tensors == 9);
  CHECK(report.verify_scope.not_compared ==
        std::vector<std::string>{"9 tensors compared as changed by quantize: NVFP4"});
}

TEST_CASE("an optimizer's state cannot follow codes") {
  MemoryFileSystem fs;
  const std::string source = load_sample(fs, "dcp/fsdp2_w2");
  const auto quantized = [&](const std::string& to) {
    return quantizing(source, to, BlockScheme::kFp8, 2);
  };
  CHECK(status_of(fs, quantized("/out")).code == Code::kUnsupported);
  ConvertOptions model = quantized("/model");
  model.selection.only = Part::kModel;
  REQUIRE(convert(fs, model).published);
  ConvertOptions drop = quantized("/drop");
  drop.transform.optim = OptimPolicy::kDrop;
  const ConvertReport report = convert(fs, drop);
  REQUIRE(report.published);
  const auto tensors = content_at(fs, "/drop").tensors;
  std::vector<std::string> codes;
  for (const auto& [name, content] : tensors)
    if (content.starts_with("float8")) codes.push_back(name.substr(std::string("model.").size()));
  REQUIRE(codes.size() > 1);
  int others = 0;
  for (const auto& [name, content] : tensors) {
    others += name.ends_with(".exp_avg");
    for (const std::string& code : codes) CHECK(name != "optim.state." + code + ".exp_avg");
  }
  CHECK(others > 0);
}

TEST_CASE("config.json says how the result is quantized, and which layers stay") {
  MemoryFileSystem fs;
  const std::string source = load_sample(fs, "safetensors/to_quantize");
  const auto config = [&](const std::string& to, BlockScheme scheme) {
    ConvertOptions options = quantizing("/source", to, scheme);
    options.copy_assets = true;
    REQUIRE(convert(fs, options).published);
    return config_at(fs, to);
  };
  const Value fp8 = config("/fp8", BlockScheme::kFp8);
  CHECK(fp8.find("model_type")->as_string() == "llama");
  const Value* how = fp8.find("quantization_config");
  REQUIRE(how != nullptr);
  CHECK(how->find("quant_method")->as_string() == "fp8");
  std::vector<std::string> kept;
  for (const Value& module : how->find("modules_to_not_convert")->as_list())
    kept.push_back(module.as_string());
  CHECK(kept ==
        std::vector<std::string>{"lm_head", "model.embed_tokens", "model.layers.0.mlp.gate"});
  const Value nvfp4 = config("/nvfp4", BlockScheme::kNvfp4);
  how = nvfp4.find("quantization_config");
  CHECK(how->find("format")->as_string() == "nvfp4-pack-quantized");
  CHECK(how->find("ignore")->as_list().size() == 4);
  // Without a config.json it is said.
  const ConvertReport report = convert(fs, quantizing(source, "/bare", BlockScheme::kFp8));
  CHECK(std::ranges::none_of(report.notes, [](const Note& note) {
          return note.code == Finding::kAsset && note.severity == Severity::kWarning;
        }) == false);
}

TEST_CASE("quantize-tensor names weights") {
  MemoryFileSystem fs;
  const std::string source = load_sample(fs, "safetensors/to_quantize");
  ConvertOptions options = quantizing(source, "/out", BlockScheme::kFp8);
  options.transform.quantize_tensors = {"*.v_proj.weight", "model.embed_tokens.*"};
  REQUIRE(convert(fs, options).published);
  const auto tensors = content_at(fs, "/out").tensors;
  CHECK(std::ranges::count_if(
            tensors, [](const auto& entry) { return entry.first.ends_with("_scale_inv"); }) == 2);
  CHECK(tensors.contains("model.embed_tokens.weight_scale_inv"));
  options = quantizing(source, "/other", BlockScheme::kFp8);
  options.transform.quantize_tensors = {"*.v_pro.weight"};
  CHECK(status_of(fs, options).code == Code::kInvalidArgument);
  options.transform.quantize_tensors = {"*norm*"};
  CHECK(status_of(fs, options).code == Code::kInvalidArgument);
  options.transform.quantize.reset();
  CHECK(status_of(fs, options).code == Code::kInvalidArgument);
  MemoryFileSystem other;
  ConvertOptions mixed = quantizing(load_sample(other, "safetensors/to_quantize_experts"), "/out",
                                    BlockScheme::kMxfp4);
  mixed.transform.quantize_tensors = {"*proj*"};
  CHECK(status_of(other, mixed).code == Code::kInvalidArgument);
}

TEST_CASE("a cast comes before codes are made, and NaN has none") {
  MemoryFileSystem fs;
  const std::string source = load_sample(fs, "safetensors/to_quantize");
  ConvertOptions both = quantizing(source, "/both", BlockScheme::kNvfp4);
  both.transform.dtype = DType::kBFloat16;
  REQUIRE(convert(fs, both).published);
  ConvertOptions cast = convert_options(source, "/cast", std::nullopt, "safetensors");
  cast.transform.dtype = DType::kBFloat16;
  REQUIRE(convert(fs, cast).published);
  REQUIRE(convert(fs, quantizing("/cast", "/two_steps", BlockScheme::kNvfp4)).published);
  CHECK(content_at(fs, "/both").tensors == content_at(fs, "/two_steps").tensors);

  std::vector<float> numbers(64, 1.0F);
  numbers[40] = std::nanf("");
  const std::string bytes(reinterpret_cast<const char*>(numbers.data()), 256);
  fs.make_directories("/nan");
  fs.write_file(
      "/nan/model.safetensors",
      as_bytes(safetensors_of(
          R"({"w.weight":{"dtype":"F32","shape":[2,32],"data_offsets":[0,256]}})", bytes)));
  for (const auto& [scheme, value] : kSchemes) {
    INFO(scheme);
    const Status status = status_of(fs, quantizing("/nan/model.safetensors", "/out", value));
    CHECK(status.code == Code::kUnsupported);
    CHECK(status.context.tensor.starts_with("w.weight"));
  }
}

TEST_CASE("any part of codes and scales is that part of the whole") {
  std::mt19937 random(3);
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  for (int round = 0; round < 30; ++round) {
    BlockWeight weight;
    weight.scheme = kSchemes[static_cast<std::size_t>(round % 3)].second;
    weight.dtype = round % 2 != 0 ? DType::kFloat32 : DType::kBFloat16;
    weight.rows = 1 + below(300);
    weight.columns = weight.scheme == BlockScheme::kFp8
                         ? 1 + below(300)
                         : (1 + below(9)) * block_columns(weight.scheme);
    weight.second = 37;
    const auto width = static_cast<std::size_t>(element_bytes(weight.dtype));
    Bytes elements(static_cast<std::size_t>(weight.rows * weight.columns) * width);
    for (std::byte& byte : elements) byte = static_cast<std::byte>(random() & 0xBF);  // finite
    const bool fp8 = weight.scheme == BlockScheme::kFp8;
    const std::int64_t wide =
        (weight.columns + block_columns(weight.scheme) - 1) / block_columns(weight.scheme);
    const std::int64_t codes = weight.rows * weight.columns / (fp8 ? 1 : 2);
    const std::int64_t scales = (fp8 ? (weight.rows + 127) / 128 : weight.rows) * wide;
    for (const auto& [recipe, numel, size] :
         {std::tuple(block_codes(weight), codes, 1),
          std::tuple(block_scales(weight), scales, fp8 ? 4 : 1)}) {
      const auto part = [&](std::int64_t begin, std::int64_t end) {
        const ElementRuns needed = recipe->needs(begin, end).at(0);
        const ByteView view =
            ByteView(elements).subspan(static_cast<std::size_t>(needed.first) * width,
                                       static_cast<std::size_t>(needed.count) * width);
        Bytes out(static_cast<std::size_t>((end - begin) * size));
        recipe->compute(begin, end, {&view, 1}, out);
        return out;
      };
      const Bytes whole = part(0, numel);
      for (int cut = 0; cut < 5; ++cut) {
        const std::int64_t begin = below(numel), end = begin + 1 + below(numel - begin);
        const Bytes some = part(begin, end);
        CHECK(std::equal(some.begin(), some.end(), whole.begin() + begin * size));
      }
    }
  }
}

}  // namespace quantize_test
