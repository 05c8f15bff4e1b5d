// Optimizers of every kind through every pair of formats that keep a state dict as it is: the same
// in canonical form, whether keyed as stored, by name or by id. Through formats with forms of their
// own: the same, or refused before a byte is written.
#include <tessera/base/error.h>
#include <tessera/format/registry.h>
#include <tessera/ops/convert.h>

#include <array>
#include <catch2/catch.hpp>

#include "tests/support/convert_case.h"
#include "tests/support/random_optimizer.h"
#include "tests/support/sanitized.h"
#include "tests/support/written_checkpoint.h"
#include "tests/support/written_formats.h"

namespace optim_pairs_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

constexpr std::uint64_t kSeed = 7031;
constexpr std::array kTrees = {"torch-save", "torch-dcp", "safetensors", "torch-rank-files"};
constexpr std::array kForms = {OptimizerForm::kIds, OptimizerForm::kNames, OptimizerForm::kFlat};

using Content = std::map<std::string, std::string>;

Content content_of(FileSystem& fs, const std::string& path) {
  OpenedCheckpoint opened = open_checkpoint(fs, path);
  opened.locate_all({});
  return canonical_content(opened.manifest, *opened.directory);
}

Status convert_to(MemoryFileSystem& fs, const std::string& from, const std::string& to,
                  const std::string& format, OptimKeys keys = OptimKeys::kKeep) {
  ConvertOptions options = convert_options(from, to, std::nullopt, format);
  options.optim_keys = keys;
  try {
    convert(fs, options);
  } catch (const Error& error) {
    return error.status();
  }
  return {};
}

template <class Test>
void for_each_optimizer(std::uint64_t rounds, Test&& test) {
  for (int kind = 0; kind < kOptimizerKinds; ++kind)
    for (const OptimizerForm form : kForms)
      for (std::uint64_t round = 0; round < rounds; ++round) {
        const auto which = static_cast<OptimizerKind>(kind);
        INFO(kind_text(which) << ", form " << static_cast<int>(form) << ", seed " << kSeed + round);
        test(random_optimizer(kSeed + round, which, form));
      }
}

/// A format may be absent from a build while it is made; the three first ones never are.
std::vector<std::string> trees() {
  std::vector<std::string> out;
  for (const char* id : kTrees)
    if (const FormatDriver* driver = find_format(id); driver && driver->capabilities().writes)
      out.emplace_back(id);
  REQUIRE(out.size() >= 3);
  return out;
}

}  // namespace

TEST_CASE("every optimizer is the same after any two formats that keep a state dict as it is",
          "[wide]") {
  for_each_optimizer(2, [](const Manifest& made) {
    MemoryFileSystem fs;
    const std::string source = save_made(fs, made);
    const Content before = content_of(fs, source);
    for (const std::string& a : trees()) {
      REQUIRE(convert_to(fs, source, "/" + a, a).to_string() == Status{}.to_string());
      CHECK(content_of(fs, "/" + a) == before);
      for (const std::string& b : trees()) {
        INFO(a << " to " << b);
        const std::string result = "/" + a + "-" + b;
        REQUIRE(convert_to(fs, "/" + a, result, b).to_string() == Status{}.to_string());
        CHECK(content_of(fs, result) == before);
      }
    }
  });
}

TEST_CASE("every optimizer is the same when formats and keys change together", "[wide]") {
  for_each_optimizer(2, [](const Manifest& made) {
    MemoryFileSystem fs;
    const std::string source = save_made(fs, made);
    const Content before = content_of(fs, source);
    for (const std::string& a : trees()) {
      INFO("through " << a);
      const Status named = convert_to(fs, source, "/named-" + a, a, OptimKeys::kFqn);
      if (!named.ok()) {  // ids of what has no state leave the names open
        CHECK(named.code == Code::kUnsupported);
        continue;
      }
      CHECK(content_of(fs, "/named-" + a) == before);
      for (const std::string& b : trees()) {
        INFO("then " << b);
        const std::string result = "/" + a + "-" + b;
        REQUIRE(convert_to(fs, "/named-" + a, result, b, OptimKeys::kId).to_string() ==
                Status{}.to_string());
        OpenedCheckpoint opened = open_checkpoint(fs, result);
        const OptimState by_id =
            canonical_optim_states(opened.manifest, find_roles(opened.manifest.state)).at(0);
        bool certain = true;
        for (const OptimParameter& p : by_id.parameters) certain &= p.inferred && p.certain;
        if (certain) CHECK(content_of(fs, result) == before);
      }
    }
  });
}

TEST_CASE("formats with forms of their own give an optimizer back whole, or refuse it at once") {
  std::size_t held = 0;
  for (const FormatDriver* driver : written_formats()) {
    const std::string id(driver->id());
    if (std::ranges::find(kTrees, id) != kTrees.end()) continue;
    std::size_t whole = 0;
    for (const OptimizerForm form : {OptimizerForm::kIds, OptimizerForm::kNames}) {
      for (std::uint64_t round = 0; round < (kSanitized ? 1U : 4U); ++round) {
        INFO(id << ", form " << static_cast<int>(form) << ", seed " << kSeed + round);
        MemoryFileSystem fs;
        const std::string source =
            save_made(fs, random_optimizer(kSeed + round, OptimizerKind::kAdam, form));
        const Content before = content_of(fs, source);
        const Status there = convert_to(fs, source, "/there", id);
        if (!there.ok()) {
          CHECK((there.code == Code::kUnsupported || there.code == Code::kInvalidArgument));
          CHECK_FALSE(fs.stat("/there"));
          continue;
        }
        const Content after = content_of(fs, "/there");
        for (const auto& [name, text] : before) {
          const bool moment = name.find(" exp_avg") != std::string::npos;
          if (!moment && !name.starts_with("model layers")) continue;
          INFO(name);
          REQUIRE(after.contains(name));
          CHECK(after.at(name) == text);
        }
        ++whole;
      }
    }
    held += whole;
  }
  CHECK(held > 0);
}

}  // namespace optim_pairs_test
