// Shipped rules for mixtures of experts: the hub's names, transformers' stacked experts and
// Megatron's forms of one model, made by transformers and held against megatron-core's own models
// (tests/ops/data/make_moe_rules.py). No parameter may keep a name that no rule gave it.
#include <tessera/base/error.h>
#include <tessera/encoding/json.h>
#include <tessera/ops/rules.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <sstream>

#include "tests/support/convert_case.h"

namespace moe_rules_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

std::string data_file(const std::string& name) {
  std::ifstream stream(std::string(TESSERA_SOURCE_DIR) + "/tests/ops/data/moe/" + name,
                       std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  REQUIRE_FALSE(text.str().empty());
  return text.str();
}

std::string hub_state(MemoryFileSystem& fs, const std::string& family) {
  fs.make_directories("/in");
  fs.write_file("/in/hub.pt", as_bytes(data_file(family + ".pt")));
  return "/in/hub.pt";
}

std::string numbers_of(const std::string& family) {
  return family == "deepseek-v3" ? "" : ",heads=2,groups=1";
}

ConvertReport apply(MemoryFileSystem& fs, const std::string& from, const std::string& to,
                    const std::string& rules) {
  ConvertOptions options = convert_options(from, to, std::nullopt);
  options.transform.rules = parse_rules_flag(rules);
  options.transform.strict_rules = true;
  options.verify = true;
  return convert(fs, options);
}

/// "[4,5] <16 digits of the sha256>" by name.
std::map<std::string, std::string> weights_of(const std::map<std::string, std::string>& content) {
  std::map<std::string, std::string> weights;
  for (const auto& [name, line] : content)
    if (name.starts_with("model."))
      weights[name] = line.substr(line.find(' ') + 1, line.rfind(' ') - line.find(' ') + 16);
  return weights;
}

/// Moments are functions of their weight (make_moe_rules.py), on every side; what has none.
std::vector<std::string> check_moments(MemoryFileSystem& fs, const std::string& path) {
  OpenedCheckpoint checkpoint = open_checkpoint(fs, path);
  checkpoint.locate_all({});
  std::vector<std::string> without;
  for (const auto& [fqn, shape] : parameter_shapes(checkpoint.manifest)) {
    const std::string state = "optim.state." + fqn;
    if (checkpoint.manifest.find(state + ".exp_avg") == nullptr) {
      without.push_back(fqn);
      continue;
    }
    INFO(fqn);
    std::vector<float> weight = checkpoint.read<float>("model." + fqn);
    CHECK(checkpoint.read<float>(state + ".step") == std::vector<float>{7});
    std::vector<float> wanted;
    for (const float w : weight) wanted.push_back(w * 2 + 1);
    CHECK(checkpoint.read<float>(state + ".exp_avg") == wanted);
    for (float& w : weight) w *= w;
    CHECK(checkpoint.read<float>(state + ".exp_avg_sq") == weight);
  }
  return without;
}

std::map<std::string, std::map<std::string, std::string>> expected_sides(
    const std::string& family) {
  std::map<std::string, std::map<std::string, std::string>> sides;
  const Value root = parse_json(as_bytes(data_file(family + ".json")));
  for (const auto& [side, tensors] : root.as_dict())
    for (const auto& [name, line] : tensors.as_dict())
      sides[side.as_string()][name.as_string()] = line.as_string();
  return sides;
}

/// Groups list their members in the order of the side they came from.
std::map<std::string, std::string> without_order(std::map<std::string, std::string> values) {
  std::vector<std::string> names;
  std::string& params = values.at("optim.param_groups.0.params");
  const Value listed = parse_json(as_bytes(params));
  for (const Value& name : listed.as_list()) names.push_back(name.as_string());
  std::ranges::sort(names);
  params.clear();
  for (const std::string& name : names) params += name + " ";
  return values;
}

Status refused(MemoryFileSystem& fs, ConvertOptions options, const std::string& rules) {
  options.transform.rules = parse_rules_flag(rules);
  return status_of(fs, options);
}

RulesOutcome planned(const std::string& rules, const std::map<std::string, Shape>& shapes,
                     const std::string& flag = "mine") {
  const auto number = [](const std::string&) { return std::optional<std::int64_t>(); };
  return plan_rules(parse_rules(R"({"schema":"tessera.rules/1",)" + rules + "}", "mine.json"),
                    parse_rules_flag(flag), shapes, number);
}

}  // namespace

TEST_CASE("experts: the hub's names become every side of a family, and come back") {
  const auto* family = GENERATE("qwen3-moe", "mixtral", "gpt-oss", "glm4-moe", "deepseek-v3");
  INFO(family);
  MemoryFileSystem fs;
  const std::string hub = hub_state(fs, family);
  const OpenedContent before = content_at(fs, hub);
  for (const auto& [side, expected] : expected_sides(family)) {
    INFO(side);
    const std::string at = "/" + side + ".pt";
    apply(fs, hub, at, std::string(family) + ":" + side + numbers_of(family));
    CHECK(weights_of(content_at(fs, at).tensors) == expected);
    for (const std::string& name : check_moments(fs, at))
      CHECK((name.ends_with("_bias") || name.find("layers.2") != std::string::npos));
    const std::string back = "/back." + side + ".pt";
    apply(fs, at, back, family + numbers_of(family));
    const OpenedContent after = content_at(fs, back);
    CHECK(after.tensors == before.tensors);
    CHECK(without_order(after.values) == without_order(before.values));
  }
}

TEST_CASE("experts: the optimizer goes to expert-parallel ranks with the order of its groups") {
  // The hub's order has one matrix of all experts before the next, ranks have all of an expert's.
  const auto* family = GENERATE("qwen3-moe", "mixtral", "gpt-oss", "glm4-moe", "deepseek-v3");
  const auto* side = GENERATE("megatron", "megatron-local");
  INFO(family << " " << side);
  MemoryFileSystem fs;
  const std::string hub = hub_state(fs, family);
  apply(fs, hub, "/stacked.pt",
        std::string(family) + (family == std::string("gpt-oss") ? ":per-expert" : ":stacked"));
  for (const std::string& from : {hub, std::string("/stacked.pt")}) {
    ConvertOptions options = convert_options(from, "/ranks", std::nullopt, "megatron-torch");
    options.target.mesh = Mesh::parse("ep=3");
    options.transform.rules =
        parse_rules_flag(std::string(family) + ":" + side + numbers_of(family));
    options.verify = true;
    options.force = true;
    const ConvertReport report = convert(fs, options);
    CHECK(report.published);
    CHECK(report.verified);
  }
}

TEST_CASE("experts: DeepSpeed's AutoEP has gate and up apart, the router twice, and comes back") {
  const std::string family = GENERATE("qwen3-moe", "mixtral");
  INFO(family);
  MemoryFileSystem fs;
  const std::string hub = hub_state(fs, family);
  apply(fs, hub, "/stacked.pt", family + ":stacked" + numbers_of(family));
  apply(fs, hub, "/autoep.pt", family + ":autoep" + numbers_of(family));
  OpenedCheckpoint stacked = open_checkpoint(fs, "/stacked.pt");
  OpenedCheckpoint autoep = open_checkpoint(fs, "/autoep.pt");
  stacked.locate_all({});
  autoep.locate_all({});
  int layers = 0;
  for (const auto& [fqn, shape] : parameter_shapes(stacked.manifest)) {
    if (!fqn.ends_with("experts.gate_up_proj")) continue;
    const std::string layer = "model." + fqn.substr(0, fqn.find("experts."));
    const auto both = stacked.read<float>("model." + fqn);
    const auto gate = autoep.read<float>(layer + "experts.w1");
    const auto up = autoep.read<float>(layer + "experts.w3");
    const auto half = static_cast<std::size_t>(shape[1] / 2 * shape[2]);
    REQUIRE(both.size() == gate.size() + up.size());
    REQUIRE(gate.size() == up.size());
    for (std::size_t i = 0; i < gate.size(); ++i) {
      const std::size_t expert = i / half * 2 * half, within = i % half;
      REQUIRE(gate[i] == both[expert + within]);
      REQUIRE(up[i] == both[expert + half + within]);
    }
    CHECK(autoep.read<float>(layer + "experts.w2") ==
          stacked.read<float>(layer + "experts.down_proj"));
    const auto router = stacked.read<float>(layer + "gate.weight");
    CHECK(autoep.read<float>(layer + "router.gate.weight") == router);
    CHECK(autoep.read<float>(layer + "gate.gate.weight") == router);
    ++layers;
  }
  CHECK(layers > 0);
  apply(fs, "/autoep.pt", "/back.pt", family + numbers_of(family));
  CHECK(content_at(fs, "/back.pt").tensors == content_at(fs, hub).tensors);
}

TEST_CASE("experts: every side becomes every other", "[wide]") {
  const auto* family = GENERATE("qwen3-moe", "mixtral", "gpt-oss", "glm4-moe", "deepseek-v3");
  INFO(family);
  MemoryFileSystem fs;
  const std::string hub = hub_state(fs, family);
  const auto sides = expected_sides(family);
  for (const auto& [from, unused] : sides) {
    apply(fs, hub, "/" + from + ".pt", std::string(family) + ":" + from + numbers_of(family));
    for (const auto& [to, expected] : sides) {
      if (from == to) continue;
      INFO(from << " to " << to);
      const std::string at = "/" + from + "." + to + ".pt";
      apply(fs, "/" + from + ".pt", at, std::string(family) + ":" + to + numbers_of(family));
      CHECK(weights_of(content_at(fs, at).tensors) == expected);
      check_moments(fs, at);
    }
  }
}

TEST_CASE("experts: copies in a layer that predicts further tokens are one with what they copy") {
  MemoryFileSystem fs;
  const std::string hub = hub_state(fs, "deepseek-v3");
  ConvertOptions options = convert_options(hub, "/out.pt", std::nullopt);
  SECTION("where bytes differ, nothing is left out") {
    options.names.map = {{"model.embed_tokens.weight", "lm_head.weight"},
                         {"lm_head.weight", "model.embed_tokens.weight"}};
    const Status status = refused(fs, options, "deepseek-v3:megatron");
    CHECK(status.code == Code::kUnsupported);
    CHECK_THAT(status.message, Catch::Contains("its bytes are others"));
  }
  SECTION("nor where the optimizer has state for one") {
    options.names.map = {{"model.layers.2.embed_tokens.weight", "lm_head.weight"},
                         {"lm_head.weight", "model.layers.2.embed_tokens.weight"}};
    const Status status = refused(fs, options, "deepseek-v3:megatron");
    CHECK(status.code == Code::kUnsupported);
    CHECK_THAT(status.message, Catch::Contains("trained apart"));
  }
  SECTION("a Hugging Face folder keeps them, unless ties are asked to go") {
    convert(fs, convert_options(hub, "/hf", std::nullopt, "hf"));
    CHECK(content_at(fs, "/hf").tensors.contains("model.layers.2.shared_head.head.weight"));
    options = convert_options(hub, "/few", std::nullopt, "hf");
    options.transform.tied = TiedPolicy::kDrop;
    CHECK(convert(fs, options).dropped.size() == 2);
  }
  SECTION("the vocabulary grows in all of them") {
    options.transform.vocab_size = 16;
    convert(fs, options);
    for (const auto& [name, line] : content_at(fs, "/out.pt").tensors) {
      if (name.find("embed_tokens") == std::string::npos &&
          name.find("head.weight") == std::string::npos)
        continue;
      INFO(name << " " << line);
      CHECK((line.find("[16,8]") != std::string::npos || name.ends_with("step")));
    }
  }
}

TEST_CASE("rules: captures count from a number that names, the flag or the model give") {
  const std::string rules = R"("sides":["a","b"],
      "parameters":{"n":{"first":["l.{i}.special"],"count":["d.{i}.w"]}},
      "blocks":[{"a":"l.{i<n}.","b":"d.{i}."},{"a":"l.{j+n}.","b":{"name":"m.{j}.","or":["o.{j}."]}}],
      "tensors":[{"block":true,"a":"w","b":"w"},{"a":"l.{j+n}.special","b":"m.{j}.special"},
                 {"a":{"name":"e","copies":"l.{j+n}.e"},"b":"e.b"}])";
  const Shape one{2};
  using Renames = std::map<std::string, std::string>;
  const auto renames = [](const RulesOutcome& plan) {
    return Renames(plan.renames.begin(), plan.renames.end());
  };
  const RulesOutcome forth = planned(
      rules, {{"l.0.w", one}, {"l.1.w", one}, {"l.1.special", one}, {"e", one}, {"l.1.e", one}});
  CHECK(renames(forth) ==
        Renames{
            {"l.0.w", "d.0.w"}, {"l.1.w", "m.0.w"}, {"l.1.special", "m.0.special"}, {"e", "e.b"}});
  CHECK(forth.copies_dropped == std::vector<std::pair<std::string, std::string>>{{"l.1.e", "e"}});
  CHECK(forth.unmatched.empty());
  const RulesOutcome back = planned(
      rules, {{"d.0.w", one}, {"d.1.w", one}, {"o.0.w", one}, {"m.0.special", one}, {"e.b", one}});
  CHECK(renames(back) == Renames{{"d.0.w", "l.0.w"},
                                 {"d.1.w", "l.1.w"},
                                 {"o.0.w", "l.2.w"},
                                 {"m.0.special", "l.2.special"},
                                 {"e.b", "e"}});
  CHECK(back.copies_made == std::vector<std::pair<std::string, std::string>>{{"l.2.e", "e"}});
  const RulesOutcome given = planned(rules, {{"l.7.w", one}, {"l.07.w", one}}, "mine,n=5");
  CHECK(renames(given) == Renames{{"l.7.w", "m.2.w"}});
  CHECK(given.unmatched == std::vector<std::string>{"l.07.w"});
  CHECK_THROWS_AS(planned(rules, {{"m.0.w", one}}), Error);  // nothing says how many there are
  CHECK_THROWS_AS(planned(rules, {{"l.1.e", one}, {"l.1.special", one}}),
                  Error);  // a copy of what?
}

TEST_CASE("rules: several dims stack, parts turn, and what stands beside decides") {
  const std::string rules = R"("sides":["a","b"],"tensors":[
      {"a":"l.{i}.e.{j}.w","b":{"name":"all","stack":["i","j"],"transposed":true}},
      {"a":{"name":"l.{i}.n","beside":"l.{i}.x"},"b":"nx.{i}"},
      {"a":{"name":"l.{i}.n","beside":["l.{i}.y","l.{i}.z"]},"b":"ny.{i}"},
      {"a":"l.{i}.x","b":"x.{i}"},{"a":"l.{i}.z","b":"z.{i}"}])";
  std::map<std::string, Shape> shapes;
  for (const char* name : {"l.0.e.0.w", "l.0.e.1.w", "l.1.e.0.w", "l.1.e.1.w"})
    shapes.emplace(name, Shape{3, 5});
  shapes.insert({{"l.0.n", Shape{4}}, {"l.1.n", Shape{4}}, {"l.0.x", {1}}, {"l.1.z", {1}}});
  const RulesOutcome plan = planned(rules, shapes);
  REQUIRE(plan.edits.size() == 1);
  const NewParameter& made = plan.edits[0].made.at(0);
  CHECK(made.shape == Shape{2, 2, 5, 3});
  REQUIRE(made.pieces.size() == 4);
  CHECK(made.pieces[1].dims == std::vector<int>{-1, -1, 1, 0});
  CHECK(made.pieces[1].origin == std::vector<std::int64_t>{0, 1, 0, 0});
  CHECK(std::ranges::find(plan.renames, std::pair<std::string, std::string>{"l.0.n", "nx.0"}) !=
        plan.renames.end());
  CHECK(std::ranges::find(plan.renames, std::pair<std::string, std::string>{"l.1.n", "ny.1"}) !=
        plan.renames.end());
  const RulesOutcome apart = planned(rules, {{"all", {2, 1, 5, 3}}});
  REQUIRE(apart.edits.at(0).made.size() == 2);
  CHECK(apart.edits[0].made[1].fqn == "l.1.e.0.w");
  CHECK(apart.edits[0].made[1].shape == Shape{3, 5});
  CHECK(planned(rules, {{"all", {0, 2, 5, 3}}}).edits.at(0).made.empty());
  shapes.erase("l.1.e.0.w");
  CHECK_THROWS_AS(planned(rules, shapes), Error);
  CHECK_THROWS_AS(planned(rules, {{"all", {2, 1, 5}}}), Error);
}

TEST_CASE("experts: weights that lie as GPT-OSS's blocks do are turned where a vector shows it") {
  const std::string rules = R"("sides":["a","b"],"tensors":[
      {"a":{"name":"up","stack":"e","transposed":{"by":["up","up_bias","down","up_bias"]}},"b":"up.{e}"},
      {"a":{"name":"down","stack":"e","transposed":{"by":["up","up_bias"]}},"b":"down.{e}"},
      {"a":{"name":"up_bias","stack":"e"},"b":"up_bias.{e}"}])";
  const auto made = [](const RulesOutcome& plan, const std::string& name) {
    for (const ParameterEdit& edit : plan.edits)
      for (const NewParameter& one : edit.made)
        if (one.fqn == name) return one;
    FAIL(name << " is not made");
    return NewParameter();
  };
  const RulesOutcome usual =
      planned(rules, {{"up", {2, 3, 8}}, {"down", {2, 4, 3}}, {"up_bias", {2, 8}}});
  CHECK(made(usual, "up.1").shape == Shape{8, 3});
  CHECK(made(usual, "down.1").shape == Shape{3, 4});
  const RulesOutcome blocks =
      planned(rules, {{"up", {2, 8, 3}}, {"down", {2, 3, 4}}, {"up_bias", {2, 8}}});
  CHECK(made(blocks, "up.1").shape == Shape{8, 3});
  CHECK(made(blocks, "down.1").shape == Shape{3, 4});
  CHECK(made(blocks, "down.1").pieces[0].dims == std::vector<int>{1, 2});
  const RulesOutcome square =
      planned(rules, {{"up", {2, 8, 8}}, {"down", {2, 8, 3}}, {"up_bias", {2, 8}}});
  CHECK(made(square, "up.1").pieces[0].dims == std::vector<int>{1, 2});
  const RulesOutcome same =
      planned(rules, {{"up", {2, 8, 3}}, {"down", {2, 3, 3}}, {"up_bias", {2, 8}}}, "mine:a");
  CHECK(made(same, "up").shape == Shape{2, 3, 8});
  CHECK(made(same, "down").pieces[0].dims == std::vector<int>{0, 2, 1});
}

TEST_CASE("rules: a file whose blocks, copies or counts make no sense says where") {
  const auto message = [](const std::string& rules) {
    try {
      parse_rules(R"({"schema":"tessera.rules/1","sides":["a","b"],)" + rules + "}", "mine.json");
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK_THAT(message(R"("tensors":[{"block":true,"a":"x","b":"y"}])"), Catch::Contains("blocks"));
  CHECK_THAT(message(R"("blocks":{},"tensors":[])"), Catch::Contains("must be a list"));
  CHECK_THAT(message(R"("blocks":[{"c":"x"}],"tensors":[])"), Catch::Contains("\"c\" is no side"));
  CHECK_THAT(message(R"("blocks":[{"a":{"stacks":"x"}}],"tensors":[])"),
             Catch::Contains("unknown key"));
  CHECK_THAT(message(R"("tensors":[{"a":"x.{i+n}","b":"y.{i}"}])"),
             Catch::Contains("counts from n"));
  CHECK_THAT(message(R"("parameters":{"n":{"first":["x"]}},"tensors":[])"),
             Catch::Contains("one {capture}"));
  CHECK_THAT(message(R"("tensors":[{"a":{"name":"x","copies":"z","stack":"i"},"b":"y"}])"),
             Catch::Contains("copies"));
  CHECK_THAT(message(R"("blocks":[{"a":"p."}],
                        "tensors":[{"block":true,"a":{"name":"x","copies":"z"},"b":"y"}])"),
             Catch::Contains("outside of blocks"));
  CHECK_THAT(message(R"("tensors":[{"a":{"name":"x","transposed":{"by":["z"]}},"b":"y"}])"),
             Catch::Contains("pairs of names"));
  CHECK_THAT(message(R"("tensors":[{"a":"x.{i+}","b":"y"}])"), Catch::Contains("name pattern"));
}

}  // namespace moe_rules_test
