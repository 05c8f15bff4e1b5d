// Optimizers whose ids are hard to name (parameters of one shape, frozen ones, buffers, groups and
// members in any order) through every format that is written, keyed as stored, by id and by name:
// the result is proved equal and says the same names, or it is refused before any work.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/ops/convert.h>

#include <catch2/catch.hpp>

#include "tests/support/convert_case.h"
#include "tests/support/random_optimizer.h"
#include "tests/support/soak.h"
#include "tests/support/written_checkpoint.h"
#include "tests/support/written_formats.h"

namespace renumbered_optimizers_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

using Content = std::map<std::string, std::string>;

/// What a checkpoint says of its optimizer, and whether it says for certain whose state it is.
struct Statement {
  Content content;
  std::vector<std::vector<std::string>> members;  // of each group, in its order
  bool certain = true;
};

Statement stated_by(const Manifest& manifest, const Directory& directory) {
  Statement stated{canonical_content(manifest, directory), {}, true};
  for (const OptimState& optim : canonical_optim_states(manifest, find_roles(manifest.state))) {
    for (const OptimGroup& group : optim.groups) stated.members.push_back(group.members);
    if (optim.dialect == OptimDialect::kById)
      for (const OptimParameter& p : optim.parameters) stated.certain &= p.inferred && p.certain;
  }
  return stated;
}

Statement stated_at(FileSystem& fs, const std::string& path) {
  OpenedCheckpoint opened = open_checkpoint(fs, path);
  opened.locate_all({});
  return stated_by(opened.manifest, *opened.directory);
}

Statement stated_of(const Manifest& made) {
  MemoryFileSystem fs;
  fs.make_directories("/none");
  return stated_by(made, *fs.open_directory("/none"));
}

/// With masters, and groups that list no members: frozen parameters and buffers have no place there.
Manifest distributed_optimizer(std::uint64_t seed) {
  Manifest made = awkward_optimizer(seed, OptimizerKind::kTransformerEngine, OptimizerForm::kNames);
  std::erase_if(made.state.entries,
                [](const StateEntry& entry) { return is_key(entry.path.back(), "params"); });
  for (StateEntry& entry : made.state.entries) {
    if (!is_key(entry.path.back(), "master_param")) continue;
    entry.path.back() = key_item("fp32_param");
    entry.name = dotted(entry.path);
    made.tensors[entry.value.tensor_index()].name = entry.name;
  }
  return made;
}

struct Case {
  std::uint64_t seed = 0;
  OptimizerKind kind = OptimizerKind::kAdam;
  OptimizerForm form = OptimizerForm::kNames;
  OptimKeys keys = OptimKeys::kKeep;
};

/// Each seed with another kind, form and key; after 117 of them every combination was there.
Case case_of(std::uint64_t seed) {
  return {seed, static_cast<OptimizerKind>(seed % kOptimizerKinds),
          static_cast<OptimizerForm>(seed / kOptimizerKinds % 3),
          static_cast<OptimKeys>(seed / (3 * kOptimizerKinds) % 3)};
}

void ask_for_ranks(ConvertOptions& options, std::uint64_t seed) {
  constexpr const char* kMeshes[] = {"tp=1", "pp=2", "tp=2", "tp=2,pp=2"};
  if (options.to.starts_with("megatron")) {
    options.target.mesh = Mesh::parse(kMeshes[seed / 2 % 4]);
  } else if (capabilities_of(options.to).many_ranks) {
    options.target.world_size = 1 + static_cast<std::int64_t>(seed % 3);
  }
}

enum class Outcome { kEqual, kRefused };

Outcome check(const std::string& format, const Case& of) {
  MemoryFileSystem fs;
  const Manifest made = awkward_optimizer(of.seed, of.kind, of.form);
  ConvertOptions options = convert_options(save_made(fs, made), "/there", std::nullopt, format);
  options.optim_keys = of.keys;
  options.verify = true;
  ask_for_ranks(options, of.seed);
  try {
    const ConvertReport report = convert(fs, options);
    for (const std::string& finding : report.verify_findings) FAIL_CHECK(finding);
    if (!report.verified) return Outcome::kEqual;
  } catch (const Error& error) {
    INFO(error.status().to_string());
    CHECK(error.code() == Code::kUnsupported);
    CHECK_FALSE(fs.stat("/there"));
    return Outcome::kRefused;
  }
  const Statement truth = stated_of(awkward_optimizer(of.seed, of.kind, OptimizerForm::kNames));
  const Statement source = stated_at(fs, "/made.pt"), result = stated_at(fs, "/there");
  if (source.certain) CHECK(result.certain);
  const Statement& expected = result.certain && !source.certain ? truth : source;
  CHECK(result.content == expected.content);
  // One option list for each parameter says nothing of an order.
  if (of.form != OptimizerForm::kFlat) CHECK(result.members == expected.members);
  return Outcome::kEqual;
}

void check_all(std::uint64_t first, std::uint64_t count) {
  for (const FormatDriver* driver : written_formats()) {
    const std::string format(driver->id());
    std::size_t equal = 0;
    for (std::uint64_t seed = first; seed < first + count; ++seed) {
      const Case of = case_of(seed);
      INFO(fmt::format("{}, seed {}: {}, form {}, keys {}", format, seed, kind_text(of.kind),
                       static_cast<int>(of.form), static_cast<int>(of.keys)));
      if (check(format, of) == Outcome::kEqual) ++equal;
    }
    INFO(format);
    CHECK(equal > count / 10);
  }
}

}  // namespace

TEST_CASE("optimizers with ids that are hard to name come through every format, or are refused",
          "[wide]") {
  check_all(8000, 117);
}

TEST_CASE("flat buffers of Megatron's distributed optimizer say whose state they hold") {
  std::size_t equal = 0;
  constexpr std::uint64_t kFirst = 8200, kCount = 24;
  for (std::uint64_t seed = kFirst; seed < kFirst + kCount; ++seed) {
    INFO("seed " << seed);
    MemoryFileSystem fs;
    ConvertOptions options = convert_options(save_made(fs, distributed_optimizer(seed)), "/there",
                                             std::nullopt, "megatron-torch");
    options.verify = true;
    ask_for_ranks(options, seed);
    try {
      const ConvertReport report = convert(fs, options);
      for (const std::string& finding : report.verify_findings) FAIL_CHECK(finding);
      ++equal;
    } catch (const Error& error) {
      INFO(error.status().to_string());
      CHECK(error.code() == Code::kUnsupported);
      CHECK_FALSE(fs.stat("/there"));
    }
  }
  CHECK(equal > kCount / 3);
}

TEST_CASE("thousands of optimizers with ids that are hard to name", "[.soak]") {
  check_all(9000, 3000);
}

}  // namespace renumbered_optimizers_test
