// Optimizer ids that shapes leave open. A conversion that has to know whose state an id is refuses
// them: taken in order, one parameter would get another's moments, in the right shape.
#include <tessera/base/error.h>

#include <catch2/catch.hpp>

#include "tests/support/convert_case.h"
#include "tests/support/rank_archive.h"

namespace uncertain_ids_test {

using namespace tessera;
using namespace tessera::testing;
using Catch::Contains;

namespace {

const Shape kSquare{4, 4};

/// Learning rates that decay layer by layer: a group for each matrix, the last one first. Id 0 is
/// "b", and only `param_names` says so.
std::string save_layer_wise(MemoryFileSystem& fs, bool named) {
  RankArchive archive;
  const auto filled = [&](float value) {
    return archive.tensor(kSquare, std::vector<float>(16, value));
  };
  const auto state = [&](float moment) {
    return dict({{"step", archive.tensor(Shape{}, {3})}, {"exp_avg", filled(moment)}});
  };
  const auto group = [&](std::int64_t id, const std::string& name, double lr) {
    std::vector<std::pair<std::string, Value>> options = {{"lr", Value::real(lr)},
                                                          {"params", Value::list({number(id)})}};
    if (named) options.emplace_back("param_names", Value::list({text(name)}));
    return dict(options);
  };
  const Value model = dict({{"a", filled(1)}, {"b", filled(2)}});
  const Value states = Value::dict({{number(0), state(20)}, {number(1), state(10)}});
  const Value groups = Value::list({group(0, "b", 0.5), group(1, "a", 0.25)});
  fs.make_directories("/in");
  fs.write_file(
      "/in/state.pt",
      archive.render(dict(
          {{"model", model}, {"optim", dict({{"state", states}, {"param_groups", groups}})}})));
  return "/in/state.pt";
}

/// What each conversion that has to know the names is asked for.
struct Asked {
  std::string what;
  void (*adjust)(ConvertOptions&);
};
const std::vector<Asked> kAsked = {
    {"rules",
     [](ConvertOptions& o) {
       o.transform.rules = parse_rules_flag("mine:apart");
       o.transform.rules->text =
           R"({"schema":"tessera.rules/1","sides":["whole","apart"],"tensors":[)"
           R"({"parts":["p","q"],"whole":"a","apart":["p","q"]}]})";
     }},
    {"vocabulary",
     [](ConvertOptions& o) {
       o.transform.vocab_size = 6;
       o.transform.vocab_tensors = {"a"};
     }},
    {"fairscale-fsdp", [](ConvertOptions& o) { o.to = "fairscale-fsdp"; }}};

ConvertOptions options_for(const Asked& asked, const std::string& source, const std::string& to) {
  ConvertOptions options = convert_options(source, to, std::nullopt, "torch-dcp");
  asked.adjust(options);
  return options;
}

}  // namespace

TEST_CASE("ids that could be several parameters are refused where names decide") {
  for (const Asked& asked : kAsked) {
    CAPTURE(asked.what);
    MemoryFileSystem fs;
    const std::string source = save_layer_wise(fs, false);
    try {
      convert(fs, options_for(asked, source, "/out"));
      FAIL_CHECK("the ids were guessed at");
    } catch (const Error& error) {
      CHECK(error.code() == Code::kUnsupported);
      CHECK_THAT(error.what(), Contains("\"optim\"") && Contains("ids"));
      CHECK_THAT(error.status().hint, Contains("--only model"));
    }
    CHECK_FALSE(fs.stat("/out"));
    ConvertOptions model = options_for(asked, source, "/model");
    model.selection.only = Part::kModel;
    CHECK(convert(fs, model).published);
  }
}

TEST_CASE("ids whose names the groups record are taken by them") {
  for (const Asked& asked : kAsked) {
    CAPTURE(asked.what);
    MemoryFileSystem fs;
    ConvertOptions options = options_for(asked, save_layer_wise(fs, true), "/out");
    options.optim_keys = OptimKeys::kFqn;
    convert(fs, options);
    ConvertOptions direct = options_for(asked, "/in/state.pt", "/direct");
    convert(fs, direct);
    direct = convert_options("/direct", "/named", std::nullopt, "torch-dcp");
    direct.optim_keys = OptimKeys::kFqn;
    convert(fs, direct);
    for (const auto& [name, content] : content_at(fs, "/out").tensors)
      if (name.find(".exp_avg") != name.npos) {
        CAPTURE(name);
        CHECK(content_at(fs, "/named").tensors.at(name) == content);
      }
  }
}

TEST_CASE("a conversion that keeps the ids does not ask whose they are") {
  MemoryFileSystem fs;
  const std::string source = save_layer_wise(fs, false);
  ConvertOptions options = convert_options(source, "/out", 3, "torch-dcp");
  options.names.renames = {{"a", "first"}};
  options.verify = true;
  CHECK(convert(fs, options).verified);
  CHECK(content_at(fs, "/out").tensors.at("optim.state.0.exp_avg") ==
        content_at(fs, source).tensors.at("optim.state.0.exp_avg"));
}

}  // namespace uncertain_ids_test
