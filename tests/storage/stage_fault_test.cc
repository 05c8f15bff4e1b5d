// Every operation of a publication fails once, and from then on for good: the output is the old one
// or the new one, and the next run finds nothing left behind.
#include <fmt/format.h>
#include <tessera/storage/faulty_file_system.h>
#include <tessera/storage/stage.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <cstdio>

#include "tests/storage/stage_fixture.h"

namespace stage_fault_test {

using namespace tessera;
using namespace tessera::test;

namespace {

struct Scenario {
  const char* name;
  bool replace;
  bool single_file;
  bool resume;
  bool resumable = false;
};

const Scenario kScenarios[] = {
    {"first publication", false, false, false},
    {"replacement", true, false, false},
    {"resumed first publication", false, false, true},
    {"resumed replacement", true, false, true},
    {"resumable first publication", false, false, false, true},
    {"resumable replacement", true, false, true, true},
    {"first file", false, true, false},
    {"replaced file", true, true, false},
};

void work(FileSystem& fs, const Scenario& scenario, bool resume) {
  const auto stage = Stage::open(fs, "/w/out", kHash,
                                 {.force = scenario.replace,
                                  .resume = resume,
                                  .single_file = scenario.single_file,
                                  .resumable = scenario.resumable});
  fill(*stage, scenario.single_file ? Tree{{"", "new content"}} : kNew);
  stage->publish({}, seal_bytes);
}

// What /w may hold before and after.
Tree old_state(const Scenario& scenario) {
  if (!scenario.replace) return {};
  if (scenario.single_file) return {{"out", "old content"}, {"out.tessera.json", "old seal"}};
  return under("out", sealed(kOld));
}
Tree new_state(const Scenario& scenario) {
  if (scenario.single_file) return {{"out", "new content"}, {"out.tessera.json", kSealText}};
  return under("out", sealed(kNew));
}

void prepare(MemoryFileSystem& fs, const Scenario& scenario) {
  fs.make_directories("/w");
  for (const auto& [path, content] : old_state(scenario))
    if (!path.ends_with('/')) fs.write_file("/w/" + path, as_bytes(content));
  fs.write_file("/w/.out.tmp-dead/f", as_bytes("left by another run"));
  if (!scenario.resume) return;
  const auto stage = Stage::open(fs, "/w/out", kHash, {.force = scenario.replace});
  const auto file = stage->create("a.bin", IoMode::kBuffered);
  file->write_at(0, as_bytes("n"));
  file->close();
  stage->keep();
  fs.write_file("/w/.out.tmp-dead/f", as_bytes("left by another run"));
}

// A file may have lost its seal on the way, and a seal may wait for its first file; the seal of
// another file is never beside one.
bool is_state(const Tree& found, Tree expected, const Scenario& scenario) {
  if (found == expected) return true;
  if (!scenario.single_file) return false;
  if (expected.empty()) return found == Tree{{"out.tessera.json", kSealText}};
  expected.erase("out.tessera.json");
  return found == expected;
}

struct Totals {
  std::uint64_t injected = 0;
  std::uint64_t old_kept = 0;
  std::uint64_t new_shown = 0;
};

// False when n is past the last operation.
bool fail_nth(const Scenario& scenario, bool has_exchange, Fault fault, Totals& totals) {
  MemoryFileSystem memory(MemoryFileSystemOptions{.has_exchange = has_exchange});
  prepare(memory, scenario);
  FaultyFileSystem faulty(memory, fault);
  std::string error;
  Code code = Code::kOk;
  try {
    work(faulty, scenario, scenario.resume);
  } catch (const Error& thrown) {
    error = thrown.what();
    code = thrown.code();
  }
  if (faulty.faults() == 0) {
    REQUIRE(error.empty());
    return false;
  }
  ++totals.injected;
  INFO(scenario.name << ", exchange " << has_exchange << ", fault " << fault.at << " errno "
                     << fault.error << " sticky " << fault.sticky << " after " << fault.after
                     << ": " << faulty.first_fault() << "; error: " << error);
  REQUIRE(faulty.sync_retries() == 0);
  if (!error.empty()) {
    REQUIRE(code == (fault.error == ENOSPC ? Code::kResourceExhausted : Code::kIo));
    REQUIRE(error.find("cannot ") != std::string::npos);
    REQUIRE(error.find("/w") != std::string::npos);
  }
  // The next run, on a sound disk, to the same name.
  Stage::open(memory, "/w/out", kOtherHash, {.force = true, .single_file = scenario.single_file})
      ->discard();
  const Tree found = tree_of(memory, "/w");
  const bool is_old = is_state(found, old_state(scenario), scenario);
  const bool is_new = is_state(found, new_state(scenario), scenario);
  REQUIRE((is_old || is_new));
  if (error.empty()) {
    REQUIRE(found == new_state(scenario));  // what failed was only the cleaning up
  } else if (!fault.sticky && !fault.after && !scenario.replace) {
    REQUIRE(found == old_state(scenario));  // undone completely
  } else if (!fault.sticky && !fault.after && has_exchange && !scenario.single_file) {
    REQUIRE(found == old_state(scenario));
  }
  ++(is_old ? totals.old_kept : totals.new_shown);
  return true;
}

}  // namespace

TEST_CASE("whichever operation fails, the old output stays or the new one is whole") {
  Totals totals;
  for (const Scenario& scenario : kScenarios) {
    for (const bool has_exchange : {true, false}) {
      for (const int error : {EIO, ENOSPC}) {
        for (const bool sticky : {false, true}) {
          for (const bool after : {false, true}) {
            Fault fault{.error = error, .sticky = sticky, .after = after};
            for (fault.at = 1; fail_nth(scenario, has_exchange, fault, totals); ++fault.at) {
            }
            REQUIRE(fault.at > 40);
          }
        }
      }
    }
  }
  fmt::print("stage faults: {} injected, {} left the old output, {} the new one\n", totals.injected,
             totals.old_kept, totals.new_shown);
  REQUIRE(totals.injected > 3000);
  REQUIRE(totals.old_kept > 0);
  REQUIRE(totals.new_shown > 0);
}

TEST_CASE("a failed sync or close ends the publication and is never asked again") {
  std::uint64_t failed = 0, retried = 0;
  for (const Scenario& scenario : kScenarios) {
    for (const bool has_exchange : {true, false}) {
      std::uint64_t n = 1;
      for (;; ++n) {
        MemoryFileSystem memory(MemoryFileSystemOptions{.has_exchange = has_exchange});
        prepare(memory, scenario);
        FaultyFileSystem faulty(memory,
                                {.at = n,
                                 .error = EIO,
                                 .ops = io_op_bit(IoOp::kSync) | io_op_bit(IoOp::kSyncDirectory) |
                                        io_op_bit(IoOp::kClose)});
        const Code code = code_of([&] { work(faulty, scenario, scenario.resume); });
        if (faulty.faults() == 0) break;
        INFO(scenario.name << ", " << faulty.first_fault());
        ++failed;
        retried += faulty.sync_retries();
        REQUIRE(code == Code::kIo);
        REQUIRE(faulty.sync_retries() == 0);
      }
      REQUIRE(n > 6);
    }
  }
  fmt::print(
      "failed syncs and closes: {} injected, each fatal to its publication, {} asked again\n",
      failed, retried);
  REQUIRE(failed >= 80);
}

TEST_CASE("a fault while keeping a stage leaves nothing locked") {
  for (std::uint64_t n = 1;; ++n) {
    MemoryFileSystem memory;
    prepare(memory, kScenarios[1]);
    FaultyFileSystem faulty(memory, {.at = n, .error = EIO, .sticky = true});
    try {
      const auto stage = Stage::open(faulty, "/w/out", kHash, {.force = true});
      fill(*stage, kNew);
      stage->keep();
    } catch (const Error&) {
    }
    if (faulty.faults() == 0) break;
    Stage::open(memory, "/w/out", kHash, {.force = true})->discard();
    REQUIRE(tree_of(memory, "/w") == old_state(kScenarios[1]));
  }
}

TEST_CASE("FaultyFileSystem fails exactly the operation asked for") {
  MemoryFileSystem memory;
  memory.write_file("/d/x", as_bytes("abc"));
  for (const bool sticky : {false, true}) {
    for (const bool after : {false, true}) {
      FaultyFileSystem fs(memory, {.at = 2,
                                   .error = ENOSPC,
                                   .sticky = sticky,
                                   .after = after,
                                   .ops = io_op_bit(IoOp::kWrite)});
      const auto file = fs.create("/d/new", IoMode::kBuffered);
      file->write_at(0, as_bytes("1"));
      REQUIRE(message_of([&] { file->write_at(1, as_bytes("2")); }) ==
              "resource exhausted: cannot write /d/new: No space left on device");
      REQUIRE(fs.first_fault() == "cannot write /d/new");
      REQUIRE(memory.read_file("/d/new").size() == (after ? 2 : 1));
      REQUIRE(code_of([&] { file->write_at(2, as_bytes("3")); }) ==
              (sticky ? Code::kResourceExhausted : Code::kOk));
      REQUIRE(fs.operations() == 3);
      REQUIRE(fs.faults() == (sticky ? 2 : 1));
      fs.disarm();
      file->write_at(2, as_bytes("3"));
      memory.remove_file("/d/new");
    }
  }
  FaultyFileSystem fs(memory, {.at = 1, .ops = io_op_bit(IoOp::kSync)});
  const auto file = fs.create("/d/y", IoMode::kBuffered);
  REQUIRE(code_of([&] { file->sync(); }) == Code::kIo);
  file->sync();
  REQUIRE(fs.sync_retries() == 1);  // the counter has teeth
}

}  // namespace stage_fault_test
