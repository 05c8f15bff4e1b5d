// Values that expand past what any command can print are refused before a byte is written; honest
// state of any size is not.
#include "lib/ops/open/value_budget.h"

#include <tessera/base/error.h>
#include <tessera/format/registry.h>
#include <tessera/live/save.h>
#include <tessera/ops/hash.h>
#include <tessera/ops/ls.h>

#include <catch2/catch.hpp>

#include "tests/support/convert_case.h"
#include "tests/support/live_job.h"
#include "tests/support/rank_archive.h"
#include "tests/support/sanitized.h"
#include "tests/support/verify_case.h"
#include "tests/support/written_checkpoint.h"

namespace value_budget_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

/// Of `levels` tuples, each twice the one before: 2^levels values in a few bytes.
Value doubling(int levels) {
  Value value = Value::integer(7);
  for (int i = 0; i < levels; ++i)
    value = Value::list(ValueList{value, value}, Value::Kind::kTuple);
  return value;
}

Manifest holding(const std::string& name, Value value) {
  Manifest manifest;
  manifest.format = "made";
  manifest.state.entries.push_back({name, {key_item(name)}, std::move(value)});
  return manifest;
}

/// A file of torch.save with this value at "v".
std::string saved(MemoryFileSystem& fs, Value value) {
  fs.make_directories("/none");
  TargetRequest request;
  request.single_file = true;
  const WrittenCheckpoint written(*find_format("torch-save"), holding("v", std::move(value)),
                                  *fs.open_directory("/none"), request);
  fs.write_file("/made.pt", written.files.begin()->second);
  return "/made.pt";
}

Status converted(MemoryFileSystem& fs, const std::string& source, const std::string& format,
                 KeepPolicy values = KeepPolicy::kDefault) {
  ConvertOptions options = convert_options(source, "/out", std::nullopt, format);
  options.target.values = values;
  try {
    convert(fs, options);
  } catch (const Error& error) {
    return error.status();
  }
  return {};
}

}  // namespace

TEST_CASE("values that double past every budget are refused before a byte is written") {
  for (const int levels : {20, 21, 60}) {
    if (kSanitized && levels != 21) continue;
    for (const std::string format :
         {"torch-save", "torch-dcp", "safetensors", "torch-rank-files"}) {
      INFO(levels << " levels to " << format);
      MemoryFileSystem fs;
      std::string source;
      try {
        source = saved(fs, doubling(levels));
      } catch (const Error& error) {  // the writer under it refuses the largest itself
        CHECK(error.code() == Code::kCorrupt);
        continue;
      }
      const auto before = fs.contents("/");
      const Status refused = converted(fs, source, format);
      CHECK(refused.code == Code::kCorrupt);
      CHECK_THAT(refused.message, Catch::Contains("objects that contain each other many times"));
      CHECK(fs.contents("/") == before);
    }
  }
}

TEST_CASE("what is written can be printed and hashed by every verb") {
  for (const int levels : {1, 16}) {
    MemoryFileSystem fs;
    const std::string source = saved(fs, doubling(levels));
    for (const std::string format : {"torch-save", "torch-dcp", "safetensors"}) {
      INFO(levels << " levels to " << format);
      if (converted(fs, source, format).ok()) {
        OpenedCheckpoint opened = open_checkpoint(fs, "/out");
        CHECK(list_tensors(opened, {}).values.size() == 1);
        fs.remove_tree("/out");
      } else {
        CHECK_FALSE(fs.stat("/out"));
      }
    }
  }
}

TEST_CASE("values that no verb can list or hash are no sound checkpoint") {
  for (const int levels : {16, 20, 21}) {
    INFO(levels << " levels");
    MemoryFileSystem fs;
    const std::string source = saved(fs, doubling(levels));
    for (const VerifyLevel level : kLevels) {
      const VerifyReport report = verify(fs, source, level);
      INFO(list(report));
      CHECK(report.ok == (levels == 16));
      if (!report.ok)
        CHECK_THAT(find(report, "CK019")->message,
                   Catch::Contains("objects that contain each other many times"));
    }
    OpenedCheckpoint opened = open_checkpoint(fs, source);
    if (levels == 16)
      CHECK_NOTHROW(hash_checkpoint(opened));
    else
      CHECK_THROWS_AS(hash_checkpoint(opened), Error);
  }
  CHECK_FALSE(verify(disk(), sample("hostile/tuple_doubling.pt")).ok);
}

TEST_CASE("values that are left out may be whatever they like") {
  MemoryFileSystem fs;
  const std::string source = saved(fs, doubling(20));
  CHECK(converted(fs, source, "torch-save", KeepPolicy::kDrop).to_string() == Status{}.to_string());
}

TEST_CASE("text that is shared many times counts for each place") {
  const Value text = Value::string(std::string(1 << 20, 'x'));
  ValueList uses(1000, text);
  CHECK_THROWS_AS(require_printable(holding("v", Value::list(uses)).state), Error);
  CHECK_THROWS_AS(
      require_printable(
          holding("v", Value::list(ValueList(1000, Value::dict({{text, Value::integer(1)}}))))
              .state),
      Error);
  CHECK_NOTHROW(require_printable(holding("v", text).state));
}

TEST_CASE("large honest values are no bomb", "[wide]") {
  MemoryFileSystem fs;
  ValueList many;
  for (int i = 0; i < 1'060'000; ++i) many.push_back(Value::integer(i));
  const Value state = Value::list(
      {Value::list(std::move(many)), Value::bytes(std::string(std::size_t{18} << 20, 'b'))},
      Value::Kind::kTuple);
  const std::string source = saved(fs, state);
  CHECK(converted(fs, source, "torch-dcp").to_string() == Status{}.to_string());
  OpenedCheckpoint opened = open_checkpoint(fs, "/out");
  CHECK(list_tensors(opened, {}).values.size() == 1);
}

TEST_CASE("a live state whose values double past every budget is not saved") {
  MemoryFileSystem fs;
  fs.make_directories("/run");
  SaveOptions options;
  options.file_system = &fs;
  const auto thrown = test::on_ranks(2, [&](RankGroup& ranks) {
    LiveState state;
    state.add_value("v", doubling(24));
    save("/run/a", state, ranks, options);
  });
  CHECK_THAT(thrown.at(0), Catch::Contains("objects that contain each other many times"));
  CHECK(fs.open_directory("/run")->list().empty());
}

TEST_CASE("what is granted to the values of a pickle holds for probes and conversions, too",
          "[wide]") {
  constexpr std::size_t kMany = 500'000;  // an empty dict is one byte of pickle
  constexpr std::uint64_t kGranted = std::uint64_t{1} << 30;
  MemoryFileSystem fs;
  for (const char* name : {"/many/rank0.pt", "/many/rank1.pt"}) {
    RankArchive archive;
    ValueList many;
    for (std::size_t i = 0; i < kMany; ++i) many.push_back(Value::dict({}));
    fs.write_file(name, archive.render(dict({{"w", archive.tensor({2}, {1, 2})},
                                             {"many", Value::list(std::move(many))}})));
  }
  CHECK_THROWS_AS(open_checkpoint(fs, "/many"), Error);
  OpenOptions options;
  options.read.pickle_limit_bytes = kGranted;
  CHECK(open_checkpoint(fs, "/many", options).driver->id() == "torch-rank-files");
  ConvertOptions convert = convert_options("/many", "/out", std::nullopt, "torch-save");
  CHECK_FALSE(status_of(fs, convert).ok());
  convert.memory_limit_bytes = kGranted;
  CHECK(status_of(fs, convert).to_string() == Status{}.to_string());
}

}  // namespace value_budget_test
