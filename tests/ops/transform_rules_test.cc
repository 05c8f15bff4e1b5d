// Shipped rules against states that torch fused itself (tests/ops/data/make_rules.py): one side
// converted equals the other as stored, optimizer state, steps and groups included.
#include <tessera/base/error.h>
#include <tessera/ops/diff.h>
#include <tessera/ops/rules.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <sstream>

#include "tests/support/convert_case.h"
#include "tests/support/note_text.h"

namespace transform_rules_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

const std::string kNumbers = ",heads=4,groups=2";

std::string load_state(MemoryFileSystem& fs, const std::string& name) {
  std::ifstream stream(std::string(TESSERA_SOURCE_DIR) + "/tests/ops/data/rules/" + name + ".pt",
                       std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  REQUIRE_FALSE(text.str().empty());
  fs.make_directories("/in");
  const std::string path = "/in/" + name + ".pt";
  fs.write_file(path, as_bytes(text.str()));
  return path;
}

/// What differs between two checkpoints, in words; "" when nothing does.
std::string difference(MemoryFileSystem& fs, const std::string& a, const std::string& b) {
  OpenedCheckpoint left = open_checkpoint(fs, a);
  OpenedCheckpoint right = open_checkpoint(fs, b);
  const DiffReport report = diff_checkpoints(left, right);
  if (report.equal) return "";
  std::string text = "differ:";
  for (const TensorDiff& tensor : report.tensors) text += " " + tensor.name;
  for (const ValueDiff& value : report.values) text += " " + value.name;
  return text;
}

ConvertReport apply(MemoryFileSystem& fs, const std::string& from, const std::string& to,
                    const std::string& rules) {
  ConvertOptions options = convert_options(from, to, std::nullopt);
  options.transform.rules = parse_rules_flag(rules);
  options.verify = true;
  return convert(fs, options);
}

void check_both_ways(const std::string& family, const std::string& a, const std::string& b) {
  INFO(family << " " << a << " and " << b);
  const std::string numbers = family == "gpt-neox" ? ",heads=4" : kNumbers;
  MemoryFileSystem fs;
  const std::string at_a = load_state(fs, family + "." + a);
  const std::string at_b = load_state(fs, family + "." + b);
  const ConvertReport forth = apply(fs, at_a, "/forth.pt", family + ":" + b + numbers);
  CHECK(forth.verified);
  CHECK(difference(fs, "/forth.pt", at_b) == "");
  const ConvertReport back = apply(fs, at_b, "/back.pt", family + ":" + a + numbers);
  CHECK(back.verified);
  CHECK(difference(fs, "/back.pt", at_a) == "");
  apply(fs, "/forth.pt", "/there_and_back.pt", family + ":" + a + numbers);
  CHECK(difference(fs, "/there_and_back.pt", at_a) == "");
}

std::string refusal(const std::function<void()>& f, Code code) {
  try {
    f();
  } catch (const Error& error) {
    CHECK(error.code() == code);
    return error.what();
  }
  FAIL("nothing was thrown");
  return "";
}

}  // namespace

TEST_CASE("llama: query groups and gate and up go between names and fusions") {
  check_both_ways("llama", "hf", "megatron");
  check_both_ways("llama", "hf", "fused");
  check_both_ways("llama", "megatron", "fused");
}

TEST_CASE("llama: layers stacked along a new dim come apart and go together") {
  MemoryFileSystem fs;
  const std::string dist = load_state(fs, "llama.megatron-dist");
  const std::string hf = load_state(fs, "llama.hf");
  ConvertOptions options = convert_options(hf, "/model.pt", std::nullopt);
  options.selection.only = Part::kModel;
  convert(fs, options);
  apply(fs, dist, "/apart.pt", "llama:hf" + kNumbers);
  CHECK(difference(fs, "/apart.pt", "/model.pt") == "");
  apply(fs, "/model.pt", "/stacked.pt", "llama:megatron-dist" + kNumbers);
  CHECK(difference(fs, "/stacked.pt", dist) == "");
}

TEST_CASE("qwen2: biases follow, and ids of the optimizer are numbered anew") {
  check_both_ways("qwen2", "hf", "megatron");
}

TEST_CASE("gpt-neox: query, key and value head by head") {
  check_both_ways("gpt-neox", "split", "hf");
  check_both_ways("gpt-neox", "split", "megatron");
  check_both_ways("gpt-neox", "hf", "megatron");
}

TEST_CASE("rules go with another format and layout in one run") {
  MemoryFileSystem fs;
  const std::string hf = load_state(fs, "llama.hf");
  const std::string megatron = load_state(fs, "llama.megatron");
  ConvertOptions options = convert_options(megatron, "/dcp", 3, "torch-dcp");
  convert(fs, options);
  options = convert_options("/dcp", "/out", 2, "");
  options.transform.rules = parse_rules_flag("llama" + kNumbers);
  options.verify = true;
  CHECK(convert(fs, options).verified);
  ConvertOptions whole = convert_options("/out", "/out.pt", std::nullopt);
  convert(fs, whole);
  CHECK(difference(fs, "/out.pt", hf) == "");
}

TEST_CASE("numbers of the model come from the flag, its arguments or config.json") {
  MemoryFileSystem fs;
  const std::string megatron = load_state(fs, "llama.megatron");
  const std::string message =
      refusal([&] { apply(fs, megatron, "/no.pt", "llama"); }, Code::kInvalidArgument);
  CHECK_THAT(message, Catch::Contains("attention heads"));
  CHECK_FALSE(fs.stat("/no.pt"));
  fs.write_file("/in/config.json",
                as_bytes(R"({"num_attention_heads": 4, "num_key_value_heads": 2})"));
  apply(fs, megatron, "/out.pt", "llama");
  CHECK(difference(fs, "/out.pt", load_state(fs, "llama.hf")) == "");
}

TEST_CASE("what rules cannot do is refused with the names") {
  MemoryFileSystem fs;
  const std::string hf = load_state(fs, "llama.hf");
  const auto refused = [&](const std::string& from, const std::string& rules) {
    return refusal([&] { apply(fs, from, "/no.pt", rules); }, Code::kInvalidArgument);
  };
  SECTION("a number of groups that does not divide") {
    CHECK_THAT(refused(hf, "llama,heads=4,groups=3"), Catch::Contains("no whole number"));
    CHECK_THAT(refused(hf, "llama,heads=8,groups=8"), Catch::Contains("do not divide"));
    CHECK_THAT(refused(load_state(fs, "llama.megatron"), "llama,heads=4,groups=4"),
               Catch::Contains("does not divide"));
  }
  SECTION("a part that is missing") {
    ConvertOptions options = convert_options(hf, "/part.pt", std::nullopt);
    options.selection.exclude = {"*layers.1.self_attn.k_proj*"};
    convert(fs, options);
    CHECK_THAT(
        refused("/part.pt", "llama" + kNumbers),
        Catch::Contains("model.layers.1.self_attn.k_proj.weight") && Catch::Contains("missing"));
  }
  SECTION("rules of another family, side or parameter") {
    CHECK_THAT(refused(hf, "gpt-neox,heads=4"), Catch::Contains("match none"));
    CHECK_THAT(refused(hf, "llama:vllm"), Catch::Contains("no side"));
    CHECK_THAT(refused(hf, "llama,head=4"), Catch::Contains("no parameter"));
    CHECK_THAT(refused(hf, "lama"), Catch::Contains("there are no rules"));
  }
}

TEST_CASE("a rules file says where it is wrong") {
  const auto message = [](const std::string& text) {
    return refusal([&] { parse_rules(text, "mine.json"); }, Code::kInvalidArgument);
  };
  CHECK_THAT(message("{"), Catch::Contains("mine.json"));
  CHECK_THAT(message(R"({"schema":"other"})"), Catch::Contains("tessera.rules/1"));
  const std::string head = R"({"schema":"tessera.rules/1","sides":["a","b"],"tensors":[)";
  CHECK_THAT(message(head + R"({"c":"x"}]})"), Catch::Contains("tensors[0]"));
  CHECK_THAT(message(head + R"({"a":"x","b":["y","z"]}]})"), Catch::Contains("2 names for"));
  CHECK_THAT(message(head + R"({"a":"x{","b":"y"}]})"), Catch::Contains("name pattern"));
  CHECK_THAT(message(head + R"({"a":{"name":"x","axes":1},"b":"y"}]})"),
             Catch::Contains("unknown key \"axes\""));
  CHECK_THAT(message(head + R"({"parts":["p","q"],"a":["x","y"],"b":{"name":"z","ratios":[1]}}]})"),
             Catch::Contains("ratios"));
}

TEST_CASE("interleaved parts alternate row by row and come apart again") {
  const RuleSet rules = parse_rules(
      R"({"schema":"tessera.rules/1","sides":["apart","woven"],"tensors":[
          {"parts":["gate","up"],"apart":["m.gate","m.up"],
           "woven":{"name":"m.gate_up","interleaved":true}}]})",
      "woven");
  const auto number = [](const std::string&) { return std::optional<std::int64_t>(); };
  const RulesOutcome woven = plan_rules(rules, {}, {{"m.gate", {3, 2}}, {"m.up", {3, 2}}}, number);
  REQUIRE(woven.edits.size() == 1);
  REQUIRE(woven.edits[0].made[0].shape == Shape{6, 2});
  REQUIRE(woven.edits[0].made[0].pieces.size() == 2);
  for (const TensorPiece& piece : woven.edits[0].made[0].pieces) {
    CHECK(piece.box.shape == Shape{3, 2});
    CHECK(piece.origin[0] == piece.source);
    CHECK(piece.to_steps == std::vector<std::int64_t>{2, 1});
  }
  const RulesOutcome apart = plan_rules(rules, {}, {{"m.gate_up", {6, 2}}}, number);
  REQUIRE(apart.edits[0].made.size() == 2);
  CHECK(apart.edits[0].made[1].pieces[0].box.origin[0] == 1);
  CHECK(apart.edits[0].made[1].pieces[0].steps[0] == 2);
  CHECK_THROWS_AS(plan_rules(rules, {}, {{"m.gate_up", {5, 2}}}, number), Error);
}

TEST_CASE("parameters that no rule names stay with a warning, or stop the conversion") {
  MemoryFileSystem fs;
  ConvertOptions options = convert_options(load_state(fs, "llama.hf"), "/out.pt", std::nullopt);
  options.names.renames = {{"model.norm.*", "model.extra_norm.*"}};
  options.transform.rules = parse_rules_flag("llama:megatron" + kNumbers);
  options.transform.strict_rules = true;
  const std::string message = refusal([&] { convert(fs, options); }, Code::kInvalidArgument);
  CHECK_THAT(message, Catch::Contains("--strict-rules") && Catch::Contains("model.extra_norm"));
  CHECK_FALSE(fs.stat("/out.pt"));
  options.transform.strict_rules = false;
  const ConvertReport report = convert(fs, options);
  const auto warned = std::ranges::find(report.notes, "RULES", note_code<Note>);
  REQUIRE(warned != report.notes.end());
  CHECK_THAT(warned->message, Catch::Contains("model.extra_norm.weight"));
  options = convert_options("/in/llama.hf.pt", "/all.pt", std::nullopt);
  options.transform.rules = parse_rules_flag("llama:megatron" + kNumbers);
  options.transform.strict_rules = true;
  convert(fs, options);
}

TEST_CASE("rules that contradict themselves are refused with the name in question") {
  const auto message = [](const std::string& tensors, const std::map<std::string, Shape>& shapes) {
    const RuleSet rules =
        parse_rules(R"({"schema":"tessera.rules/1","sides":["x","y"],"tensors":[)" + tensors + "]}",
                    "mine.json");
    const auto number = [](const std::string&) { return std::optional<std::int64_t>(); };
    return refusal([&] { plan_rules(rules, {}, shapes, number); }, Code::kInvalidArgument);
  };
  const std::map<std::string, Shape> ab = {{"a", {2, 2}}, {"b", {2, 2}}};
  CHECK_THAT(message(R"({"x":"a","y":"c"},{"x":"a","y":"d"})", ab),
             Catch::Contains("two rules name \"a\""));
  CHECK_THAT(message(R"({"x":"a","y":"b"},{"x":"b","y":"a"})", ab),
             Catch::Contains("name of several sides"));
  CHECK_THAT(message(R"({"x":"a","y":"c.{layer}"})", ab),
             Catch::Contains("c.{layer}") && Catch::Contains("gives {layer} a value"));
  CHECK_THAT(message(R"({"x":{"name":"a","stack":"layer"},"y":"c.{layer}"})",
                     {{"a", Shape{std::int64_t{1} << 50, 0}}}),
             Catch::Contains("come apart"));
}

}  // namespace transform_rules_test
