// Every value of flags that have a few, against every format that is written: a reader of the
// result finds what was asked for, or it is refused. None is taken and ignored.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/format/deepspeed_zero.h>
#include <tessera/format/registry.h>
#include <tessera/state/roles.h>

#include <catch2/catch.hpp>
#include <functional>
#include <string>

#include "lib/format/value_policy.h"
#include "tests/support/convert_case.h"
#include "tests/support/random_optimizer.h"
#include "tests/support/written_checkpoint.h"
#include "tests/support/written_formats.h"

namespace flag_values_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

struct FlagValue {
  std::string text;
  std::function<void(ConvertOptions&)> give;
  std::function<bool(const Manifest&)> holds;
  bool refused = false;  // by every format
};

std::vector<std::string> formats() {
  std::vector<std::string> out;
  for (const FormatDriver* driver : written_formats()) out.emplace_back(driver->id());
  return out;
}

/// `least`: of the formats are to take it.
void check_value(MemoryFileSystem& fs, const std::string& source, const FlagValue& value,
                 std::size_t least) {
  std::size_t taken = 0;
  std::string refusals;
  for (const std::string& format : formats()) {
    CAPTURE(format, value.text);
    ConvertOptions options = convert_options(source, "/out", std::nullopt, format);
    value.give(options);
    const Status status = status_of(fs, options);
    INFO(status.to_string());
    if (status.ok()) {
      CHECK_FALSE(value.refused);
      const OpenedCheckpoint result = open_checkpoint(fs, "/out");
      CHECK(value.holds(result.manifest));
      fs.remove_tree("/out");
      ++taken;
    } else {
      refusals += fmt::format("{}: {}\n", format, status.to_string());
      CHECK((status.code == Code::kInvalidArgument || status.code == Code::kUnsupported));
      CHECK_FALSE(fs.stat("/out"));
    }
  }
  INFO(value.text << ": " << refusals);
  CHECK(taken >= least);
}

bool keyed_by_ids(const Manifest& manifest, bool ids) {
  const Roles roles = find_roles(manifest.state);
  return !roles.optimizers.empty() &&
         std::ranges::all_of(roles.optimizers, [&](const OptimizerRoot& root) {
           return (root.dialect == OptimDialect::kById) == ids;
         });
}

FlagValue keys(const char* text, OptimKeys value, std::function<bool(const Manifest&)> holds) {
  return {text, [value](ConvertOptions& o) { o.optim_keys = value; }, std::move(holds)};
}

/// Whether an entry that is no part of an optimizer is no tensor, and holds an object where asked.
bool has_value(const Manifest& manifest, bool with_object) {
  const Roles roles = find_roles(manifest.state);
  for (std::size_t i = 0; i < roles.entries.size(); ++i) {
    const Value& value = manifest.state.entries[i].value;
    if (roles.entries[i].role != Role::kOther || value.is_tensor()) continue;
    ValueBudget budget(1 << 20);
    if (!with_object || !find_object(value, {.opaque = false, .bytes_io = true}, budget).empty())
      return true;
  }
  return false;
}

}  // namespace

TEST_CASE("the optimizer is keyed as --optim-keys says, or the value is refused") {
  for (const OptimizerForm form : {OptimizerForm::kNames, OptimizerForm::kIds}) {
    MemoryFileSystem fs;
    const std::string source = save_made(fs, random_optimizer(7051, OptimizerKind::kAdam, form));
    const auto by_ids = [](const Manifest& m) { return keyed_by_ids(m, true); };
    const auto by_names = [](const Manifest& m) { return keyed_by_ids(m, false); };
    check_value(fs, source, keys("id", OptimKeys::kId, by_ids), 4);
    check_value(fs, source, keys("fqn", OptimKeys::kFqn, by_names), 8);
  }
  MemoryFileSystem fs;
  const std::string source =
      save_made(fs, random_optimizer(7051, OptimizerKind::kAdam, OptimizerForm::kNames));
  for (const OptimKeys value : {OptimKeys::kId, OptimKeys::kFqn, OptimKeys::kFlat}) {
    ConvertOptions options = convert_options(source, "/hf", std::nullopt, "hf");
    options.optim_keys = value;
    CHECK(status_of(fs, options).code == Code::kInvalidArgument);
  }
}

TEST_CASE("flattened keys are written where training code reads them, elsewhere refused by name") {
  for (const OptimizerForm form :
       {OptimizerForm::kNames, OptimizerForm::kIds, OptimizerForm::kFlat}) {
    MemoryFileSystem fs;
    const std::string source = save_made(fs, random_optimizer(7051, OptimizerKind::kAdam, form));
    const auto flattened = [](const Manifest& m) {
      return find_roles(m.state).optimizers.at(0).dialect == OptimDialect::kFlat;
    };
    const auto grouped = [&](const Manifest& m) { return !flattened(m); };
    check_value(fs, source, keys("flat", OptimKeys::kFlat, flattened), 4);
    check_value(fs, source, keys("id", OptimKeys::kId, grouped), 4);
    check_value(fs, source, keys("fqn", OptimKeys::kFqn, grouped), 8);
    std::vector<std::string> taken;
    for (const std::string& format : formats()) {
      ConvertOptions options = convert_options(source, "/out", std::nullopt, format);
      options.optim_keys = OptimKeys::kFlat;
      options.dry_run = true;
      const Status status = status_of(fs, options);
      CAPTURE(format, status.to_string());
      if (status.ok()) {
        taken.push_back(format);
        continue;
      }
      CHECK(status.code == Code::kInvalidArgument);
      CHECK_THAT(status.message, Catch::Contains("--optim-keys flat is for "));
      CHECK_THAT(status.message, Catch::Contains("not for " + format));
    }
    std::ranges::sort(taken);
    CHECK(taken == std::vector<std::string>{"torch-checkpointing", "torch-dcp", "torch-rank-files",
                                            "torch-save"});
  }
}

TEST_CASE("values and objects are kept, dropped or refused as asked") {
  using Set = std::function<void(ConvertOptions&, KeepPolicy)>;
  const std::pair<const char*, Set> flags[] = {
      {"--values", [](ConvertOptions& o, KeepPolicy p) { o.target.values = p; }},
      {"--opaque", [](ConvertOptions& o, KeepPolicy p) { o.target.opaque = p; }}};
  for (const auto& [flag, set] : flags) {
    MemoryFileSystem fs;
    const std::string source = load_sample(fs, "torchsave/numpy_objects_zip");
    const bool objects = std::string_view(flag) == "--opaque";
    const auto has = [objects](const Manifest& m) { return has_value(m, objects); };
    const auto given = [&set = set](KeepPolicy p) {
      return [set, p](ConvertOptions& o) { set(o, p); };
    };
    INFO(flag);
    check_value(fs, source, {"keep", given(KeepPolicy::kKeep), has}, 1);
    check_value(fs, source,
                {"drop", given(KeepPolicy::kDrop), [&](const Manifest& m) { return !has(m); }}, 4);
    check_value(fs, source, {"error", given(KeepPolicy::kError), has, true}, 0);
  }
}

TEST_CASE("engines of each ZeRO stage are written, and as many ranks as were asked for") {
  MemoryFileSystem fs;
  const std::string source = load_sample(fs, "dcp/fsdp2_w3");
  for (const std::int64_t stage : {1, 2, 3}) {
    const FlagValue value{fmt::format("--zero-stage {}", stage),
                          [stage](ConvertOptions& o) { o.own.set(kZeroStageFlag, stage); },
                          [stage](const Manifest& m) {
                            const auto found = m.provenance.find("deepspeed.zero_stage");
                            return found != m.provenance.end() &&
                                   found->second == std::to_string(stage);
                          }};
    check_value(fs, source, value, 1);
  }
  for (const std::int64_t ranks : {1, 2, 3}) {
    const FlagValue value{fmt::format("--world-size {}", ranks),
                          [ranks](ConvertOptions& o) { o.target.world_size = ranks; },
                          [ranks](const Manifest& m) { return m.world_size.value_or(1) == ranks; }};
    check_value(fs, source, value, 3);
  }
}

TEST_CASE("the way out that a ZeRO writer names for steps that differ is one") {
  MemoryFileSystem fs;
  const std::string source =
      save_made(fs, random_optimizer(7051, OptimizerKind::kAdam, OptimizerForm::kNames));
  struct Row {
    const char* format;
    std::int64_t stage;
    const char* hint;
  };
  for (const Row& row : {Row{"deepspeed-zero", 2, "write deepspeed-universal, which"},
                         Row{"deepspeed-zero", 3, "write deepspeed-universal with --zero-stage 2"},
                         Row{"deepspeed-universal", 3, "add --zero-stage 2"}}) {
    ConvertOptions options = convert_options(source, "/out", std::nullopt, row.format);
    options.own.set(kZeroStageFlag, row.stage);
    const Status status = status_of(fs, options);
    CAPTURE(row.format, row.stage, status.to_string());
    CHECK(status.code == Code::kUnsupported);
    CHECK_THAT(status.hint, Catch::Contains(row.hint));
  }
  ConvertOptions options = convert_options(source, "/out", std::nullopt, "deepspeed-universal");
  options.own.set(kZeroStageFlag, 2);
  CHECK(status_of(fs, options).to_string() == Status{}.to_string());
}

}  // namespace flag_values_test
