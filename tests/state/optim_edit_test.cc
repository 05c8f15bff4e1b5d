// Optimizers rekeyed between names and ids; weights taken from master copies.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/state/optim_edit.h>
#include <tessera/storage/memory_file_system.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/support/random_optimizer.h"
#include "tests/support/sanitized.h"

namespace optim_edit_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

constexpr std::uint64_t kSeed = 20251121;

std::map<std::string, std::string> content(const Manifest& manifest) {
  MemoryFileSystem fs;
  fs.make_directories("/none");
  return canonical_content(manifest, *fs.open_directory("/none"));
}

std::vector<std::string> names(const Manifest& manifest) {
  std::vector<std::string> out;
  for (const StateEntry& entry : manifest.state.entries) out.push_back(entry.name);
  std::ranges::sort(out);
  return out;
}

template <class F>
Status failure(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.status();
  }
  return {};
}

bool has_one_answer(const Manifest& manifest) {
  const OptimState optim = canonical_optim_states(manifest, find_roles(manifest.state)).at(0);
  return std::ranges::all_of(optim.parameters,
                             [](const OptimParameter& p) { return p.inferred && p.certain; });
}

OptimDialect dialect_of(const Manifest& manifest) {
  return find_roles(manifest.state).optimizers.at(0).dialect;
}

void drop(Manifest& manifest, const std::string& prefix) {
  std::vector<bool> keep;
  for (const StateEntry& entry : manifest.state.entries)
    keep.push_back(!entry.name.starts_with(prefix));
  keep_entries(manifest, keep);
}

}  // namespace

TEST_CASE("every kind of optimizer says the same by name as by id") {
  std::size_t certain = 0;
  for (int kind = 0; kind < kOptimizerKinds; ++kind)
    for (std::uint64_t round = 0; round < draws(60U); ++round) {
      const auto which = static_cast<OptimizerKind>(kind);
      INFO(kind_text(which) << " seed " << kSeed << " round " << round);
      const Manifest stored = random_optimizer(kSeed + round, which, OptimizerForm::kIds);
      Manifest named = stored;
      if (!has_one_answer(stored)) {
        CHECK_THAT(failure([&] { rekey_optimizers(named, OptimKeys::kFqn); }).message,
                   Catch::Contains("could mean other parameters too"));
        continue;
      }
      ++certain;
      rekey_optimizers(named, OptimKeys::kFqn);
      CHECK(content(named) == content(stored));
      for (const StateEntry& entry : named.state.entries)
        for (const PathItem& item : entry.path) CHECK(item.kind != PathItem::Kind::kIntKey);
      Manifest back = named;
      rekey_optimizers(back, OptimKeys::kId);
      CHECK(names(back) == names(stored));
      CHECK(content(back) == content(stored));
      for (const StateEntry& entry : stored.state.entries) {
        const StateEntry* other = back.state.find(entry.name);
        REQUIRE(other != nullptr);
        CHECK(other->path == entry.path);
        CHECK(other->value == entry.value);
      }
    }
  CHECK(certain > draws(500U));  // of 600: groups of plain SGD without names leave theirs open
}

TEST_CASE("names become the ids that torch.optim would give") {
  for (int kind = 0; kind < kOptimizerKinds; ++kind)
    for (std::uint64_t round = 0; round < draws(40U); ++round) {
      const auto which = static_cast<OptimizerKind>(kind);
      INFO(kind_text(which) << " seed " << kSeed << " round " << round);
      Manifest named = random_optimizer(kSeed + round, which, OptimizerForm::kNames);
      const auto before = content(named);
      const OptimState optim = canonical_optim_states(named, find_roles(named.state)).at(0);
      rekey_optimizers(named, OptimKeys::kId);
      std::int64_t next = 0;
      for (std::size_t g = 0; g < optim.groups.size(); ++g) {
        const StateEntry* params = named.state.find(fmt::format("optim.param_groups.{}.params", g));
        REQUIRE(params != nullptr);
        for (const Value& id : params->value.as_list()) CHECK(id.as_int() == next++);
      }
      Manifest back = named;  // ids alone may leave open what has no state
      if (!has_one_answer(named)) continue;
      rekey_optimizers(back, OptimKeys::kFqn);
      CHECK(content(back) == before);
    }
}

TEST_CASE("flattened options become groups again when they get ids or names") {
  for (int kind = 0; kind < kOptimizerKinds; ++kind)
    for (std::uint64_t round = 0; round < draws(40U); ++round) {
      const auto which = static_cast<OptimizerKind>(kind);
      INFO(kind_text(which) << " seed " << kSeed << " round " << round);
      Manifest flat = random_optimizer(kSeed + round, which, OptimizerForm::kFlat);
      const auto before = content(flat);
      Manifest named = flat;
      rekey_optimizers(named, OptimKeys::kFqn);
      CHECK(dialect_of(named) == OptimDialect::kByFqn);
      CHECK(content(named) == before);
      rekey_optimizers(flat, OptimKeys::kId);
      CHECK(dialect_of(flat) == OptimDialect::kById);
      if (has_one_answer(flat)) CHECK(content(flat) == before);
    }
}

TEST_CASE("flattened keys that are whole paths become an optimizer of its own") {
  Manifest flat = random_optimizer(kSeed, OptimizerKind::kAdam, OptimizerForm::kFlat);
  const auto before = content(flat);
  for (StateEntry& entry : flat.state.entries)
    if (entry.path.size() > 1) entry.path = {key_item(dotted(entry.path))};
  flat.state.containers.clear();
  REQUIRE(dialect_of(flat) == OptimDialect::kFlat);
  rekey_optimizers(flat, OptimKeys::kFqn);
  CHECK(dialect_of(flat) == OptimDialect::kByFqn);
  for (const StateEntry& entry : flat.state.entries) {
    CAPTURE(entry.name);
    const bool of_optimizer = entry.name.view().find(".state.") != std::string::npos ||
                              entry.name.view().find("param_groups") != std::string::npos;
    CHECK((!of_optimizer || entry.path.size() > 3));  // "optim", "state", name, leaf
  }
  CHECK(content(flat) == before);
}

TEST_CASE("flattened options become groups with the members' names") {
  for (int kind = 0; kind < kOptimizerKinds; ++kind)
    for (std::uint64_t round = 0; round < draws(40U); ++round) {
      const auto which = static_cast<OptimizerKind>(kind);
      INFO(kind_text(which) << " seed " << kSeed << " round " << round);
      Manifest flat = random_optimizer(kSeed + round, which, OptimizerForm::kFlat);
      const auto before = content(flat);
      const bool is_flat = find_roles(flat.state).optimizers.at(0).dialect == OptimDialect::kFlat;
      CHECK(group_optimizers(flat).size() == (is_flat ? 1 : 0));
      CHECK(find_roles(flat.state).optimizers.at(0).dialect == OptimDialect::kByFqn);
      CHECK(content(flat) == before);
      const auto grouped = names(flat);
      CHECK(group_optimizers(flat).empty());
      CHECK(names(flat) == grouped);
    }
}

TEST_CASE("ids without a model, state without a group, no groups: refused by name") {
  Manifest alone = random_optimizer(3, OptimizerKind::kAdam, OptimizerForm::kIds);
  while (alone.state.find("optim.param_groups.0.param_names") != nullptr)
    drop(alone, "optim.param_groups.0.param_names");
  drop(alone, "model.");
  const Status no_model = failure([&] { rekey_optimizers(alone, OptimKeys::kFqn); });
  CHECK(no_model.code == Code::kUnsupported);
  CHECK_THAT(
      no_model.message,
      Catch::Contains("no model weights, so integer optimizer ids cannot be mapped to names"));

  Manifest groupless = random_optimizer(3, OptimizerKind::kAdam, OptimizerForm::kNames);
  drop(groupless, "optim.param_groups");
  CHECK_THAT(failure([&] { rekey_optimizers(groupless, OptimKeys::kId); }).message,
             Catch::Contains("no param_groups"));

  Manifest strange = random_optimizer(3, OptimizerKind::kAdam, OptimizerForm::kNames);
  for (StateEntry& entry : strange.state.entries)
    if (entry.name == "optim.param_groups.0.params") entry.value = Value::list({});
  CHECK_THAT(failure([&] { rekey_optimizers(strange, OptimKeys::kId); }).message,
             Catch::Contains("which no group lists"));

  Manifest model = random_optimizer(3, OptimizerKind::kAdam, OptimizerForm::kNames);
  drop(model, "optim.");
  CHECK_THAT(failure([&] { rekey_optimizers(model, OptimKeys::kId); }).message,
             Catch::Contains("no optimizer"));
}

TEST_CASE("containers of the state follow their keys") {
  Manifest manifest = random_optimizer(5, OptimizerKind::kAdam, OptimizerForm::kIds);
  const PathItem optim{PathItem::Kind::kKey, 0, "optim"}, state{PathItem::Kind::kKey, 0, "state"};
  manifest.state.containers.push_back({{optim, state, {PathItem::Kind::kIntKey, 0, ""}},
                                       Value::Kind::kOrderedDict,
                                       {},
                                       static_cast<std::size_t>(-1)});
  const OptimState before = canonical_optim_states(manifest, find_roles(manifest.state)).at(0);
  rekey_optimizers(manifest, OptimKeys::kFqn);
  const PathItem& item = manifest.state.containers[0].path[2];
  CHECK(item.kind == PathItem::Kind::kKey);
  CHECK(item.key == before.groups[0].members[0]);
}

TEST_CASE("weights take bytes and type of their master copies") {
  Manifest manifest = random_optimizer(8, OptimizerKind::kTransformerEngine, OptimizerForm::kNames);
  const auto before = content(manifest);
  const std::vector<Note> notes = prefer_masters(manifest);
  const auto after = content(manifest);
  std::size_t checked = 0;
  for (const auto& [name, text] : before) {
    if (!name.ends_with(" master_param")) continue;
    const std::string fqn = name.substr(0, name.find(' '));
    CHECK(after.at("model " + fqn) == text);
    CHECK(before.at("model " + fqn) != text);
    ++checked;
  }
  CHECK(checked > 0);
  CHECK_THAT(notes.at(0).message, Catch::Contains("come from their master copies"));
  for (const auto& [name, text] : before)
    if (!name.starts_with("model ")) CHECK(after.at(name) == text);

  Manifest plain = random_optimizer(8, OptimizerKind::kAdam, OptimizerForm::kNames);
  CHECK_THAT(failure([&] { prefer_masters(plain); }).message,
             Catch::Contains("no fp32 master copies"));
}

}  // namespace optim_edit_test
