// audit of runs to which nothing is done, and what it says of order, parts, retention.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/ops/convert.h>

#include <catch2/catch.hpp>

#include "tests/support/convert_case.h"
#include "tests/support/rank_archive.h"
#include "tests/support/sanitized.h"
#include "tests/support/training_run.h"

namespace audit_test {

using namespace tessera;
using namespace tessera::testing;
using Catch::Matchers::Contains;

namespace {

/// `saves` checkpoints, `apart` steps from one to the next.
MemoryFileSystem& healthy(MemoryFileSystem& fs, int saves, int apart, std::uint64_t seed = 1) {
  TrainingRun run(seed);
  for (int i = 0; i < saves; ++i) {
    run.train(apart);
    run.save(fs);
  }
  return fs;
}

std::vector<std::string> names(const AuditReport& report) {
  std::vector<std::string> out;
  for (const AuditedCheckpoint& row : report.checkpoints) out.push_back(row.name);
  return out;
}

}  // namespace

TEST_CASE("a healthy run has no finding but the newest checkpoint and what could go") {
  for (const std::uint64_t seed : {1, 2, 3})
    for (const int apart : {1, 7, 200}) {
      if (kSanitized && (seed != 1 || apart != 7)) continue;
      MemoryFileSystem fs;
      healthy(fs, 4, apart, seed);
      for (const bool deep : {false, true}) {
        const AuditReport report = audited(fs, deep);
        INFO("seed " << seed << ", every " << apart << " steps\n" << trouble(report));
        CHECK(trouble(report).empty());
        CHECK(report.notes.empty());
        CHECK(report.ok());
        CHECK(report.newest_whole == fmt::format("step_{}.pt", 4 * apart));
        CHECK(report.newest_sound == report.newest_whole);
      }
    }
}

TEST_CASE("checkpoints come in the order of their steps, with what they say of themselves") {
  MemoryFileSystem fs;
  TrainingRun run;
  for (const int steps : {9, 1, 90}) {
    run.train(steps);
    run.save(fs);
  }
  fs.write_file("/run/latest", as_bytes(std::string("step_100.pt")));
  const AuditReport report = audited(fs, false);
  CHECK(names(report) == std::vector<std::string>{"step_9.pt", "step_10.pt", "step_100.pt"});
  const AuditedCheckpoint& last = report.checkpoints.back();
  CHECK(last.series == "step_#.pt");
  CHECK(last.name_step == 100);
  CHECK(last.stored_step == 100.0);
  CHECK(last.stored_step_source == "iteration");
  CHECK(last.optimizer_step == 100.0);
  CHECK(last.parameters_with_state == 10);
  CHECK(last.complete);
  CHECK(last.sound);
}

TEST_CASE("a pointer to an older checkpoint is a warning") {
  MemoryFileSystem fs;
  healthy(fs, 3, 10);
  fs.write_file("/run/latest", as_bytes(std::string("step_20.pt")));
  const AuditReport report = audited(fs, false);
  REQUIRE(found(report, "AU005", "step_20.pt"));
  CHECK_THAT(found(report, "AU005")->message, Contains("step_30.pt is newer and whole"));
  CHECK(report.ok());
}

TEST_CASE("steps that are counted from 0, in samples, or skipped by the optimizer are no finding") {
  for (const int way : {0, 1, 2}) {
    MemoryFileSystem fs;
    TrainingRun run;
    for (int i = 0; i < 4; ++i) {
      run.train(10);
      TrainingRun saved = run;
      if (way == 0) saved.stored_step -= 1;
      if (way == 1) saved.stored_step *= 256;
      if (way == 2)
        for (TrainedTensor& t : saved.tensors()) t.step -= i == 2 ? 1 : i == 3 ? 3 : 0;
      saved.save(fs);
    }
    const AuditReport report = audited(fs, true);
    INFO(way << trouble(report));
    CHECK(trouble(report).empty());
  }
}

TEST_CASE("retention keeps the newest sound checkpoints and what the pointer names") {
  MemoryFileSystem fs;
  TrainingRun run;
  for (int i = 1; i <= 8; ++i) {
    run.train(10);
    TrainingRun saved = run;
    if (i >= 7) saved["lm_head.weight"].w[0] = NAN;
    saved.save(fs);
  }
  fs.write_file("/run/latest", as_bytes(std::string("step_10.pt")));
  const AuditReport report = audited(fs, true, [](AuditOptions& o) { o.keep = 2; });
  std::vector<std::string> going;
  std::uint64_t bytes = 0;
  for (const AuditRetention& row : report.retention) going.push_back(row.name), bytes += row.bytes;
  // 80 and 70 hold NaN and are newer than all that is sound; 60 and 50 stay; 10 is named.
  CHECK(going == std::vector<std::string>{"step_40.pt", "step_30.pt", "step_20.pt"});
  CHECK(report.retention_bytes == bytes);
  CHECK(bytes > 0);
  CHECK(report.newest_sound == "step_60.pt");
  REQUIRE(found(report, "AU070"));
  // Where none is sound, none may go.
  MemoryFileSystem bad;
  for (TrainedTensor& t : run.tensors()) t.w[0] = NAN;
  for (int i = 0; i < 6; ++i) {
    run.train(10);
    run.save(bad);
  }
  const AuditReport none = audited(bad, true, [](AuditOptions& o) { o.keep = 1; });
  CHECK(none.retention.empty());
  CHECK(none.newest_sound.empty());
}

TEST_CASE(
    "a tensor, or optimizer state of some parameters, that one checkpoint lacks is a finding") {
  MemoryFileSystem fs;
  TrainingRun run;
  for (int i = 0; i < 4; ++i) {
    run.train(10);
    TrainingRun saved = run;
    if (i == 1)
      std::erase_if(saved.tensors(),
                    [](const auto& t) { return t.name == "layers.3.norm.weight"; });
    if (i == 3) saved["layers.0.mlp.weight"].step = 0;
    saved.save(fs);
  }
  const AuditReport report = audited(fs, false);
  INFO(trouble(report));
  REQUIRE(found(report, "AU006", "step_20.pt", "model.layers.3.norm.weight"));
  CHECK(found(report, "AU006")->severity == Severity::kError);
  REQUIRE(found(report, "AU021", "step_40.pt", "model.layers.0.mlp.weight"));
  CHECK_THAT(found(report, "AU021")->message, Contains("1 of 10"));
}

TEST_CASE("a component that one step lacks is a finding, and components are series of their own") {
  MemoryFileSystem fs;
  for (const int step : {10, 20, 30})
    for (const std::string part : {"actor", "critic"}) {
      if (part == "critic" && step == 20) continue;
      TrainingRun run(part == "actor" ? 1 : 2, 2);
      run.train(step);
      MemoryFileSystem other;
      run.save_model(other);
      fs.write_file(fmt::format("/run/global_step_{}/{}/model.safetensors", step, part),
                    other.read_file(fmt::format("/run/step_{}/model.safetensors", step)));
    }
  const AuditReport report = audited(fs, true);
  INFO(trouble(report));
  REQUIRE(report.checkpoints.size() == 5);
  REQUIRE(found(report, "AU006"));
  CHECK_THAT(found(report, "AU006")->message, Contains("step 20 lacks") && Contains("critic"));
  CHECK(trouble(report).find("AU010") == std::string::npos);
}

TEST_CASE("what an interrupted save left is said, and one checkpoint alone can be audited") {
  MemoryFileSystem fs;
  healthy(fs, 2, 5);
  fs.write_file("/run/.step_15.tmp-0123/part", Bytes(1000));
  const AuditReport report = audited(fs, false);
  REQUIRE(found(report, "AU071", ".step_15.tmp-0123"));
  CHECK_THAT(found(report, "AU071")->message, Contains("1000 B"));
  AuditOptions options;
  options.deep = true;
  const AuditReport one = audit_run(fs, "/run/step_5.pt", options);
  CHECK(one.checkpoints.size() == 1);
  CHECK(trouble(one).empty());
  CHECK_THROWS_AS(audit_run(fs, "/none", options), Error);
}

TEST_CASE("a sealed run is compared by its seals, whatever its format") {
  for (const std::string format : {"torch-dcp", "safetensors"}) {
    MemoryFileSystem fs;
    TrainingRun run(1, 2, 512);  // tensors larger than a block of the seal
    for (const int step : {1, 2, 3}) {
      if (step != 3) run.train(1);
      MemoryFileSystem made;
      run.step = step;
      run.stored_step = step;
      run.save(made);
      fs.write_file("/made.pt", made.read_file(fmt::format("/run/step_{}.pt", step)));
      fs.make_directories("/run");
      const Status status = status_of(
          fs, convert_options("/made.pt", fmt::format("/run/step_{}", step), std::nullopt, format));
      REQUIRE(status.to_string() == Status{}.to_string());
    }
    const AuditReport report = audited(fs, false);
    INFO(format << "\n" << trouble(report));
    REQUIRE(report.checkpoints.size() == 3);
    CHECK(report.checkpoints[0].sealed);
    CHECK_FALSE(found(report, "AU010", "step_2"));
    CHECK(found(report, "AU010", "step_3"));
  }
}

}  // namespace audit_test
