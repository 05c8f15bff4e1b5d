// What a command line means: subcommands, bare paths, values, and the nearest word for a slip.
#include <tessera/base/error.h>

#include <catch2/catch.hpp>

#include "tests/support/run_command.h"
#include "tools/args/args.h"

namespace arguments_test {

using namespace tessera;
using namespace tessera::tools;

namespace {

Arguments parse(Tool tool, std::vector<std::string> words) { return parse_arguments(tool, words); }
Arguments inspect_words(std::vector<std::string> words) {
  return parse(Tool::kInspect, std::move(words));
}

Status refusal(Tool tool, const std::vector<std::string>& words) {
  try {
    parse_arguments(tool, words);
  } catch (const Error& error) {
    return error.status();
  }
  FAIL("accepted");
  return {};
}
std::string refused(std::vector<std::string> words, Tool tool = Tool::kInspect) {
  const Status status = refusal(tool, words);
  CHECK(status.code == Code::kInvalidArgument);
  return status.message;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a subcommand, a bare path and flags before either are told apart") {
  CHECK(inspect_words({"ls", "a/b"}).verb == Verb::kLs);
  CHECK(inspect_words({"a/b"}).verb == Verb::kSummary);
  CHECK_FALSE(inspect_words({"a/b"}).verb_given);
  const Arguments flags_first = inspect_words({"--format", "json", "--threads=3", "hash", "x"});
  CHECK(flags_first.verb == Verb::kHash);
  CHECK(flags_first.format == OutputFormat::kJson);
  CHECK(flags_first.threads == 3);
  CHECK(flags_first.words == std::vector<std::string>{"x"});
  // The value of a flag is no subcommand.
  CHECK(inspect_words({"--root", "ls", "a/b"}).verb == Verb::kSummary);
  CHECK(inspect_words({"--root", "ls", "a/b"}).root == "ls");
  CHECK(inspect_words({}).special == Special::kExamples);
  CHECK(inspect_words({"ls", "--help"}).special == Special::kHelp);
  CHECK(inspect_words({"--version"}).special == Special::kVersion);
}

TEST_CASE("after -- every word is a word") {
  CHECK(inspect_words({"ls", "--", "-odd"}).words == std::vector<std::string>{"-odd"});
  CHECK(inspect_words({"diff", "a", "--", "--b"}).words == std::vector<std::string>{"a", "--b"});
}

TEST_CASE("repeated flags gather, other flags take the last") {
  const Arguments a = inspect_words(
      {"ls", "p", "--include", "[ab]", "--include", "c,d", "--top", "3", "--top", "5"});
  CHECK(a.include == std::vector<std::string>{"[ab]", "c,d"});
  CHECK(a.top == 5);
  const Arguments d = inspect_words({"diff", "a", "b", "-qn", "7", "--abs", "1e-3"});
  CHECK(d.quiet);
  CHECK(d.limit == 7);
  CHECK(d.abs_tolerance == 1e-3);
  CHECK(inspect_words({"show", "p", "n", "--npy", "-", "--slice", "-4:,:2"}).npy == "-");
}

TEST_CASE("dequantize has a type, in either form, or bfloat16") {
  const auto type = [](const std::vector<std::string>& words) {
    const Arguments a = parse(Tool::kConvert, words);
    CHECK(a.words == std::vector<std::string>{"s", "d"});
    return a.convert.transform.dequantize;
  };
  CHECK(type({"s", "d"}) == std::nullopt);
  CHECK(type({"--dequantize", "s", "d"}) == DType::kBFloat16);
  CHECK(type({"s", "d", "--dequantize"}) == DType::kBFloat16);
  CHECK(type({"s", "d", "--dequantize=fp32"}) == DType::kFloat32);
  CHECK(type({"s", "--dequantize", "fp16", "d"}) == DType::kFloat16);
}

TEST_CASE("reshard and convert take their flags") {
  const Arguments a = parse(
      Tool::kReshard, {"s", "d", "--mesh", "dp=2,tp=4", "--placements", "*.w=shard(0),replicate",
                       "--placements", "*=replicate,replicate", "--mem-limit", "5MB", "--no-keep"});
  const TargetRequest& target = a.convert.target;
  CHECK(target.mesh->to_string() == "dp=2,tp=4");
  REQUIRE(target.placements.size() == 2);
  CHECK(target.placements[0].first == "*.w");
  CHECK(target.placements[0].second == Placement::parse_list("shard(0),replicate"));
  CHECK(a.mem_limit_bytes == 5000000);
  CHECK_FALSE(a.convert.keep);
  const auto assets = [](std::vector<std::string> words) {
    const ConvertOptions options = parse(Tool::kConvert, std::move(words)).convert;
    return std::pair(options.copy_assets, options.assets_directory);
  };
  CHECK(assets({"s", "d", "--to", "hf", "--copy-assets"}) == std::pair(true, std::string()));
  CHECK(assets({"s", "--copy-assets=x", "d", "--to", "hf"}) == std::pair(true, std::string("x")));
  CHECK(assets({"s", "d", "--to", "hf"}) == std::pair(false, std::string()));
  CHECK(parse(Tool::kConvert, {"--copy-assets", "s", "d", "--to", "hf"}).words.size() == 2);
  using Own = std::vector<std::pair<std::string, std::string>>;
  const auto own = [](const Arguments& a) { return a.own.texts(); };
  CHECK(own(parse(Tool::kConvert, {"--as-index", "s", "d", "--to", "hf"})) ==
        Own{{"--as-index", ""}});
  CHECK(own(parse(Tool::kConvert, {"s", "d", "--as-index=hub", "--to", "hf"})) ==
        Own{{"--as-index", "hub"}});
  CHECK(own(parse(Tool::kConvert, {"s", "d", "--to", "hf"})).empty());
  CHECK(own(parse(Tool::kReshard, {"s", "d", "--mesh", "tp=2", "--assume-plain"})) ==
        Own{{"--assume-plain", "true"}});
}

TEST_CASE("verify levels: the strongest given wins, full without one") {
  CHECK(inspect_words({"verify", "p"}).level == VerifyLevel::kFull);
  CHECK(inspect_words({"verify", "p", "--quick"}).level == VerifyLevel::kQuick);
  CHECK(inspect_words({"verify", "p", "--deep"}).level == VerifyLevel::kDeep);
  CHECK(inspect_words({"verify", "a", "b", "c"}).words.size() == 3);
}

TEST_CASE("slips name the nearest word") {
  CHECK(contains(refused({"sumary"}), "did you mean summary?"));
  CHECK(contains(refused({"vrify", "p"}), "did you mean verify?"));
  CHECK(contains(refused({"completely-else"}), "subcommands: summary, ls"));
  CHECK(contains(refused({"ls", "p", "--fromat", "json"}), "unknown flag --fromat"));
  CHECK(contains(refused({"ls", "p", "--chunk"}), "did you mean --chunks?"));
  CHECK(contains(refused({"ls", "p", "--format", "jsn"}), "did you mean json?"));
  CHECK(contains(refused({"s", "d", "--to", "safetensor"}, Tool::kConvert),
                 "did you mean safetensors?"));
  CHECK(contains(refused({"s", "d", "--world-sise", "2"}, Tool::kReshard),
                 "did you mean --world-size?"));
}

TEST_CASE("values that cannot be are refused, naming the flag") {
  for (const std::string bad : {"0", "-1", "x", "1.5", "", "99999999999999999999"}) {
    if (bad.empty()) continue;
    CHECK(contains(refused({"s", "d", "--world-size", bad}, Tool::kReshard), "--world-size"));
  }
  CHECK(contains(refused({"ls", "p", "--mem-limit", "12Q"}), "--mem-limit"));
  CHECK(contains(refused({"ls", "p", "--mem-limit", "0"}), "--mem-limit"));
  for (const char* small : {"1", "1KiB", "1048575"})
    CHECK(contains(refused({"ls", "p", "--mem-limit", small}), "at least 1MiB"));
  CHECK(inspect_words({"ls", "p", "--mem-limit", "1048576"}).mem_limit_bytes == 1 << 20);
  CHECK(contains(refused({"diff", "a", "b", "--abs", "nan"}), "--abs"));
  CHECK(contains(refused({"diff", "a", "b", "--rel", "-1"}), "--rel"));
  CHECK(contains(refused({"ls", "p", "--root="}), "empty"));
  CHECK(contains(refused({"ls", "p", "--include"}), "--include"));
  CHECK(contains(refused({"s", "d", "--placements", "x"}, Tool::kReshard), "--placements"));
}

TEST_CASE("a wrong number of words is refused, naming what is wanted") {
  CHECK(contains(refused({"ls"}), "PATH"));
  CHECK(contains(refused({"show", "p"}), "PATH NAME"));
  CHECK(contains(refused({"diff", "a"}), "A B"));
  CHECK(contains(refused({"ls", "a", "b"}), "\"b\""));
  CHECK(contains(refused({"s"}, Tool::kReshard), "SRC DST"));
  CHECK(contains(refused({"a", "b", "c"}, Tool::kConvert), "\"c\""));
}

TEST_CASE("the wanted output form is known even where parsing fails") {
  const auto form = [](const std::vector<std::string>& words) {
    return requested_format(Tool::kInspect, words);
  };
  CHECK(form({"ls", "--nonsense", "--format", "json"}) == OutputFormat::kJson);
  CHECK(form({"--format=ndjson", "x"}) == OutputFormat::kNdjson);
  CHECK(form({"ls", "--", "--format", "json"}) == OutputFormat::kHuman);
  CHECK(form({"--format", "json", "--format", "human"}) == OutputFormat::kHuman);
  CHECK(form({"ls", "--json", "--nonsense"}) == OutputFormat::kJson);
  CHECK(form({"--json", "--format=human"}) == OutputFormat::kHuman);
  CHECK(form({"--", "--json"}) == OutputFormat::kHuman);
}

TEST_CASE("every subcommand's definition can be walked and has examples") {
  const CommandSpec spec = command_spec(Tool::kInspect);
  REQUIRE(spec.commands.size() == 14);
  CHECK(spec.examples.size() == 5);
  for (const CommandSpec& command : spec.commands) {
    INFO(command.name);
    CHECK_FALSE(command.summary.empty());
    CHECK_FALSE(command.examples.empty());
    for (const OptionSpec& option : command.options) {
      INFO(option.names.back());
      CHECK_FALSE(option.description.empty());
      CHECK(option.names.back() != "--generate");
    }
  }
  CHECK(command_spec(Tool::kReshard).examples.size() == 5);
  CHECK(command_spec(Tool::kConvert).examples.size() == 5);
}

}  // namespace arguments_test
