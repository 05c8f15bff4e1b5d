// Parameters left out of checkpoints whose optimizers know them by integer ids: state and group
// membership leave with them, as they do where the optimizer knows names.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/ops/select.h>
#include <tessera/state/optim_edit.h>
#include <tessera/state/optim_state.h>
#include <tessera/storage/memory_file_system.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

#include "tests/support/inspect_case.h"
#include "tests/support/random_optimizer.h"
#include "tests/support/sanitized.h"

namespace exclude_ids_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

constexpr std::uint64_t kSeed = 20261121;

std::map<std::string, std::string> content(const Manifest& manifest) {
  MemoryFileSystem fs;
  fs.make_directories("/none");
  return canonical_content(manifest, *fs.open_directory("/none"));
}

OptimState optimizer_of(const Manifest& manifest) {
  return canonical_optim_states(manifest, find_roles(manifest.state)).at(0);
}

bool has_one_answer(const OptimState& optim) {
  return std::ranges::all_of(optim.parameters,
                             [](const OptimParameter& p) { return p.inferred && p.certain; });
}

void leave_out(Manifest& manifest, const std::string& name) {
  apply_selection(manifest, {.exclude = {name}, .state_follows = true});
}

}  // namespace

TEST_CASE("leaving a parameter out means the same by id as by name") {
  int compared = 0;
  for (int kind = 0; kind < kOptimizerKinds; ++kind)
    for (std::uint64_t round = 0; round < draws(30U); ++round) {
      const auto which = static_cast<OptimizerKind>(kind);
      INFO(kind_text(which) << " seed " << kSeed << " round " << round);
      Manifest ids = random_optimizer(kSeed + round, which, OptimizerForm::kIds);
      const OptimState optim = optimizer_of(ids);
      if (!has_one_answer(optim) || optim.parameters.size() < 2) continue;
      std::mt19937_64 random(kSeed + round);
      const std::string gone = optim.parameters[random() % optim.parameters.size()].fqn;
      INFO(gone << " is left out");
      Manifest named = ids;
      rekey_optimizers(named, OptimKeys::kFqn);
      leave_out(ids, "model." + gone);
      leave_out(named, "model." + gone);
      const OptimState after = optimizer_of(ids);
      CHECK(after.find(gone) == nullptr);
      CHECK(after.parameters.size() == optim.parameters.size() - 1);
      if (!has_one_answer(after)) continue;  // SGD without state
      CHECK(content(ids) == content(named));
      ++compared;
    }
  CHECK(compared > draws(150));
}

TEST_CASE("of tied weights one name may go, the parameter and its state stay") {
  for (const std::string gone : {"model.embed.weight", "model.head.weight"}) {
    OpenOptions options;
    options.selection = {.exclude = {gone}, .state_follows = true};
    const OpenedCheckpoint opened = open_sample("torchsave/sgd_tied_zip", options);
    INFO(gone);
    CHECK(opened.manifest.state.find(gone) == nullptr);
    CHECK(opened.manifest.state.find("optim.state.0.momentum_buffer") != nullptr);
    CHECK(opened.manifest.state.find("optim.param_groups.0.params")->value.as_list().size() == 11);
  }
}

TEST_CASE("state that is kept by name goes by the tied name that stays") {
  for (const bool first_goes : {true, false}) {
    const std::string gone = first_goes ? "embed.weight" : "head.weight";
    const std::string stays = first_goes ? "head.weight" : "embed.weight";
    INFO(gone << " is left out");
    Manifest manifest = open_sample("torchsave/sgd_tied_zip", {}).manifest;
    rekey_optimizers(manifest, OptimKeys::kFqn);
    const OptimState before = optimizer_of(manifest);
    leave_out(manifest, "model." + gone);
    const OptimState after = optimizer_of(manifest);
    CHECK(after.parameters.size() == before.parameters.size());
    CHECK(after.find(gone) == nullptr);
    REQUIRE(after.find(stays) != nullptr);
    CHECK_FALSE(after.find(stays)->leaves.empty());
    CHECK(manifest.state.find("optim.state." + stays + ".momentum_buffer") != nullptr);
    const ValueList members = manifest.state.find("optim.param_groups.0.params")->value.as_list();
    CHECK(members.size() == 11);
    CHECK(std::ranges::count(members, Value::string(stays)) == 1);
    CHECK(std::ranges::count(members, Value::string(gone)) == 0);
  }
}

TEST_CASE("both names of tied weights take the state along when both go") {
  Manifest manifest = open_sample("torchsave/sgd_tied_zip", {}).manifest;
  rekey_optimizers(manifest, OptimKeys::kFqn);
  apply_selection(manifest,
                  {.exclude = {"model.embed.weight", "model.head.weight"}, .state_follows = true});
  CHECK(optimizer_of(manifest).parameters.size() == 10);
}

TEST_CASE("ids that could be several parameters are not guessed at") {
  Manifest manifest;
  const auto add = [&](const std::string& name, Path path, Value value) {
    manifest.state.entries.push_back({name, std::move(path), std::move(value)});
  };
  const auto key = [](const std::string& text) { return PathItem{PathItem::Kind::kKey, 0, text}; };
  const auto tensor = [&](const std::string& name) {
    StoredTensor stored;
    stored.name = name;
    stored.spec = {DType::kFloat32, Shape{4, 4}};
    manifest.tensors.push_back(stored);
    return Value::tensor(static_cast<std::uint32_t>(manifest.tensors.size() - 1));
  };
  for (const std::string name : {"a", "b", "c"})  // one of them is frozen
    add("model." + name, {key("model"), key(name)}, tensor("model." + name));
  for (const int id : {0, 1}) {
    const std::string name = fmt::format("optim.state.{}.exp_avg", id);
    add(name, {key("optim"), key("state"), {PathItem::Kind::kIntKey, id, ""}, key("exp_avg")},
        tensor(name));
  }
  add("optim.param_groups.0.params",
      {key("optim"), key("param_groups"), {PathItem::Kind::kIndex, 0, ""}, key("params")},
      Value::list({Value::integer(0), Value::integer(1)}));
  try {
    Manifest cut = manifest;
    leave_out(cut, "model.b");
    FAIL("guessed");
  } catch (const Error& error) {
    CHECK(error.code() == Code::kUnsupported);
    CHECK_THAT(error.what(), Catch::Contains("\"b\"") && Catch::Contains("\"optim\""));
  }
  Manifest model = manifest;  // nothing of the optimizer is kept
  apply_selection(model, {.exclude = {"model.b", "optim.*"}, .state_follows = true});
  CHECK(model.state.entries.size() == 2);
}

}  // namespace exclude_ids_test
