// Which part of a checkpoint a command looks at.
#include <tessera/base/error.h>
#include <tessera/ops/ls.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <set>

#include "tests/support/inspect_case.h"

namespace select_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

std::set<std::string> names(const Selection& selection,
                            const std::string& sample = "dcp/fsdp2_w2") {
  OpenOptions options;
  options.selection = selection;
  const OpenedCheckpoint opened = open_sample(sample, options);
  std::set<std::string> names;
  for (const StateEntry& entry : opened.manifest.state.entries) names.insert(entry.name);
  for (std::uint32_t i : leaf_tensors(opened.manifest))
    CHECK(names.contains(opened.manifest.tensors[i].name));
  return names;
}

Status refusal(const Selection& selection) {
  try {
    names(selection);
  } catch (const Error& error) {
    return error.status();
  }
  FAIL("selected something");
  return {};
}

}  // namespace

TEST_CASE("globs match whole names, stars cross dots, exclude wins") {
  const auto weights = names({.include = {"model.*.weight"}});
  CHECK(weights.contains("model.layers.0.up.weight"));
  CHECK_FALSE(weights.contains("model.head.bias"));
  const auto rest = names({.include = {"model.*.weight"}, .exclude = {"*layers.0*"}});
  CHECK_FALSE(rest.contains("model.layers.0.up.weight"));
  CHECK(rest.contains("model.layers.1.up.weight"));
  CHECK(names({.include = {"model.head.bias", "model.head.weight"}}) ==
        std::set<std::string>{"model.head.bias", "model.head.weight"});
}

TEST_CASE("a pattern that matches nothing names the nearest name") {
  const Status status = refusal({.include = {"model.head.bia"}});
  CHECK(status.code == Code::kInvalidArgument);
  CHECK(status.hint.find("model.head.bias") != std::string::npos);
  CHECK(refusal({.exclude = {"nothing*"}}).code == Code::kInvalidArgument);
  CHECK(refusal({.root = "modle"}).code == Code::kInvalidArgument);
  CHECK(refusal({.root = "modell"}).hint.find("\"model\"") != std::string::npos);
  CHECK(refusal({.root = "model.head.bias"}).message ==
        "--root \"model.head.bias\" is a tensor, not a subtree");
  CHECK(refusal({.exclude = {"*"}}).code == Code::kInvalidArgument);
}

TEST_CASE("a root becomes the whole") {
  const auto whole = names({.root = "model"});
  CHECK(whole.contains("head.weight"));
  CHECK(std::ranges::none_of(whole, [](const auto& n) { return n.starts_with("optim"); }));
  CHECK(names({.root = "model"}) == names({}, "dcp/fsdp2_w2_model_only"));
}

TEST_CASE("model, optimizer and the rest are disjoint and cover everything") {
  for (const char* sample : {"dcp/fsdp2_w2", "dcp/fsdp2_w2_flat_optim", "torchsave/adamw_zip",
                             "torchsave/fsdp1_full_rekeyed", "olmo-core/model_and_optim_w2"}) {
    INFO(sample);
    std::size_t sum = 0;
    for (Part part : {Part::kModel, Part::kOptim, Part::kOther}) {
      try {
        sum += names({.only = part}, sample).size();
      } catch (const Error&) {  // nothing of this part
      }
    }
    CHECK(sum == names({}, sample).size());
    for (const std::string& name : names({.only = Part::kOptim}, sample))
      CHECK(name.starts_with("optim"));
    for (const std::string& name : names({.only = Part::kModel}, sample))
      CHECK(name.starts_with("model"));
  }
}

TEST_CASE("left-out parameters take their state and membership along when asked") {
  Selection selection{.exclude = {"model.head.*"}, .state_follows = true};
  OpenOptions options;
  options.selection = selection;
  const OpenedCheckpoint opened = open_sample("dcp/fsdp2_w2", options);
  for (const StateEntry& entry : opened.manifest.state.entries) {
    INFO(entry.name.view());
    CHECK(entry.name.find("head.") == std::string::npos);
    if (!entry.name.ends_with(".params")) continue;
    for (const Value& member : entry.value.as_list())
      CHECK_FALSE(member.as_string().starts_with("head."));
  }
  selection.state_follows = false;
  CHECK(names(selection).contains("optim.state.head.weight.exp_avg"));
}

TEST_CASE("parts have three names") {
  CHECK(parse_part("model") == Part::kModel);
  CHECK(parse_part("optim") == Part::kOptim);
  CHECK(parse_part("other") == Part::kOther);
  CHECK_THROWS_AS(parse_part("modle"), Error);
}

}  // namespace select_test
