// Retention removes old checkpoints of a run, and never one that a pointer names, whoever wrote the
// pointer and whenever.
#include <tessera/base/error.h>
#include <tessera/ops/seal.h>
#include <tessera/storage/memory_file_system.h>
#include <tessera/storage/observed_file_system.h>

#include <catch2/catch.hpp>
#include <thread>

#include "tests/support/live_job.h"
#include "tests/support/live_trainer.h"

namespace live_retention_test {

using namespace tessera;
using namespace tessera::test;
using Catch::Matchers::Contains;

namespace {

void save_step(FileSystem& fs, const std::string& name, std::uint32_t keep_last = 1) {
  Trainer trainer(0, 1);
  SaveOptions options = to(fs);
  options.keep_last = keep_last;
  const auto ranks = single_rank();
  save("/run/" + name, trainer.state(), *ranks, options);
}

std::vector<std::string> names(FileSystem& fs) {
  std::vector<std::string> found;
  for (const FileInfo& info : fs.open_directory("/run")->list())
    if (info.type == FileType::kDirectory) found.push_back(info.name);
  return found;
}

/// Writes the pointer, as another process might, when step_1 is about to be hidden or was.
class OtherProcess final : public ObservedFileSystem {
 public:
  OtherProcess(MemoryFileSystem& fs, bool early) : ObservedFileSystem(fs), fs_(fs), early_(early) {}

 protected:
  void before(const IoEvent& event) const override {
    if (early_) point(event);
  }
  void after(const IoEvent& event) const override {
    if (!early_) point(event);
  }

 private:
  void point(const IoEvent& event) const {
    if (event.op == IoOp::kRenameNew && event.path == "/run/step_1")
      fs_.write_file("/run/latest", as_bytes("step_1"));
  }
  MemoryFileSystem& fs_;
  bool early_;
};

/// The pointer cannot be read any more once step_1 is hidden.
class LostPointer final : public ObservedFileSystem {
 public:
  using ObservedFileSystem::ObservedFileSystem;

 protected:
  void before(const IoEvent& event) const override {
    if (hidden_ && event.op == IoOp::kRead && event.path == "/run/latest")
      fail(Code::kIo, "cannot read /run/latest");
  }
  void after(const IoEvent& event) const override {
    if (event.op == IoOp::kRenameNew && event.path == "/run/step_1") hidden_ = true;
  }

 private:
  mutable bool hidden_ = false;
};

/// The seal of step_1 cannot be read: it may be another user's.
class Forbidden final : public ObservedFileSystem {
 public:
  using ObservedFileSystem::ObservedFileSystem;

 protected:
  void before(const IoEvent& event) const override {
    if (event.op == IoOp::kOpenDirectory && event.path == "/run/step_1")
      fail(Code::kIo, "cannot open /run/step_1: Permission denied");
  }
};

/// step_2 cannot be renamed: it may be a mount point.
class Stuck final : public ObservedFileSystem {
 public:
  using ObservedFileSystem::ObservedFileSystem;

 protected:
  void before(const IoEvent& event) const override {
    if (event.op == IoOp::kRenameNew && event.path == "/run/step_2")
      fail(Code::kIo, "device or resource busy");
  }
};

/// Another process saves step_20, and keeps that alone, as soon as step_10 is in its place.
class Overtaken final : public ObservedFileSystem {
 public:
  explicit Overtaken(MemoryFileSystem& fs) : ObservedFileSystem(fs), fs_(fs) {}

 protected:
  void after(const IoEvent& event) const override {
    if (event.op == IoOp::kRenameNew && event.other == "/run/step_10") save_step(fs_, "step_20");
  }

 private:
  MemoryFileSystem& fs_;
};

}  // namespace

TEST_CASE("larger numbers are of a run that was rolled back: they neither count nor go") {
  MemoryFileSystem fs;
  for (const char* name : {"step_100", "step_200", "step_300", "step_400"}) save_step(fs, name, 9);
  save_step(fs, "step_250", 2);
  CHECK(names(fs) == std::vector<std::string>{"step_200", "step_250", "step_300", "step_400"});
  save_step(fs, "step_275", 2);
  CHECK(names(fs) == std::vector<std::string>{"step_250", "step_275", "step_300", "step_400"});
  save_step(fs, "step_450", 2);
  CHECK(names(fs) == std::vector<std::string>{"step_400", "step_450"});
}

TEST_CASE("old checkpoints go where the file system has no locks, too") {
  MemoryFileSystemOptions options;
  options.has_locks = false;
  MemoryFileSystem fs(options);
  for (const char* name : {"step_1", "step_2", "step_3"}) save_step(fs, name, 2);
  CHECK(names(fs) == std::vector<std::string>{"step_2", "step_3"});
}

TEST_CASE("a neighbour that cannot be opened stays, and the save is none the worse for it") {
  MemoryFileSystem fs;
  save_step(fs, "step_1");
  save_step(fs, "step_2", 9);
  Forbidden forbidden(fs);
  save_step(forbidden, "step_3");
  CHECK(names(fs) == std::vector<std::string>{"step_1", "step_3"});
}

TEST_CASE("a number written with other digits is no other number") {
  MemoryFileSystem fs;
  for (const char* name : {"step_007", "step_07", "step_6"}) save_step(fs, name, 9);
  save_step(fs, "step_7");
  CHECK(names(fs) == std::vector<std::string>{"step_007", "step_07", "step_7"});
}

TEST_CASE("a link into a checkpoint names it") {
  MemoryFileSystem fs;
  save_step(fs, "step_1");
  fs.make_directories("/run/step_1/inside");
  fs.add_symlink("/run/latest", "step_1/inside");
  save_step(fs, "step_2");
  save_step(fs, "step_3");
  CHECK(names(fs) == std::vector<std::string>{"step_1", "step_3"});
}

TEST_CASE("one that cannot be removed is told, and does not keep the older ones") {
  MemoryFileSystem fs;
  for (const char* name : {"step_1", "step_2", "step_3"}) save_step(fs, name, 9);
  Stuck stuck(fs);
  Trainer trainer(0, 1);
  SaveOptions options = to(stuck);
  options.keep_last = 1;
  const auto ranks = single_rank();
  const SaveReport report = save("/run/step_4", trainer.state(), *ranks, options);
  CHECK(names(fs) == std::vector<std::string>{"step_2", "step_4"});
  CHECK(report.removed == std::vector<std::string>{"step_3", "step_1"});
  CHECK(report.failed_removals == std::vector<std::string>{"step_2: device or resource busy"});
}

TEST_CASE("what a save is about to name is not removed under it, or the pointer stays") {
  MemoryFileSystem fs;
  save_step(fs, "step_1");
  fs.write_file("/run/latest", as_bytes("step_1"));
  // Between the commit of step_10 and its pointer, another process saves step_20 and keeps one.
  Overtaken overtaken(fs);
  Trainer trainer(0, 1);
  SaveOptions options = to(overtaken);
  options.update_latest = true;
  const auto ranks = single_rank();
  CHECK_THROWS_WITH(
      save("/run/step_10", trainer.state(), *ranks, options),
      Catch::Matchers::Contains("/run/step_10 was published, but has been removed since") &&
          Catch::Matchers::Contains("another save removed it"));
  CHECK(as_text(fs.read_file("/run/latest")) == "step_1");
  CHECK(names(fs) == std::vector<std::string>{"step_1", "step_20"});
}

TEST_CASE("saves of several jobs into one folder leave a pointer to a checkpoint that is there") {
  MemoryFileSystem fs;
  fs.make_directories("/run");
  for (int round = 0; round < 30; ++round) {
    std::vector<std::thread> jobs;
    for (int job = 0; job < 3; ++job)
      jobs.emplace_back([&, job] {
        Trainer trainer(0, 1);
        SaveOptions options = to(fs);
        options.update_latest = true;
        options.keep_last = 1;
        const auto ranks = single_rank();
        try {
          const std::string name = "/run/step_" + std::to_string(10 * round + job);
          save(name, trainer.state(), *ranks, options);
        } catch (const Error& error) {  // overtaken
          if (error.code() != Code::kNotFound) std::terminate();
        }
      });
    for (std::thread& job : jobs) job.join();
    const std::string latest(as_text(fs.read_file("/run/latest")));
    REQUIRE(fs.stat("/run/" + latest));
    REQUIRE(read_seal(*fs.open_directory("/run/" + latest), ""));
    for (const FileInfo& info : fs.open_directory("/run")->list())
      REQUIRE(!info.name.starts_with("."));
  }
}

TEST_CASE("names that no pointer file can name are refused with one") {
  MemoryFileSystem fs;
  fs.make_directories("/run");
  Trainer trainer(0, 1);
  SaveOptions options = to(fs);
  const auto ranks = single_rank();
  for (const char* name : {" step_1", "step_1 ", "step_1\n", "\tstep_1"}) {
    options.update_latest = true;
    CHECK_THROWS_WITH(save(std::string("/run/") + name, trainer.state(), *ranks, options),
                      Catch::Matchers::Contains("`latest` cannot name"));
    options.update_latest = false;
    CHECK(save(std::string("/run/") + name, trainer.state(), *ranks, options).total_bytes > 0);
  }
}

TEST_CASE("where latest cannot become a pointer nothing is saved") {
  MemoryFileSystem fs;
  fs.make_directories("/run/latest");
  SaveOptions options;
  options.file_system = &fs;
  options.update_latest = true;
  for (const std::string path : {"/run/step_1", "/other/latest"}) {
    const auto thrown = on_ranks(2, [&](RankGroup& ranks) {
      LiveState state;
      state.add_value("step", Value::integer(1));
      save(path, state, ranks, options);
    });
    CHECK(thrown[0] == thrown[1]);
    CHECK_THAT(thrown[0], Contains("invalid argument") && Contains("`latest`"));
    CHECK(!fs.stat(path));
  }
  CHECK(fs.open_directory("/run")->list().size() == 1);
}

TEST_CASE("what cannot be told whether a pointer names it stays") {
  MemoryFileSystem fs;
  save_step(fs, "step_1");
  fs.write_file("/run/latest", as_bytes("step_7"));
  LostPointer lost(fs);
  save_step(lost, "step_2");
  CHECK(names(fs) == std::vector<std::string>{"step_1", "step_2"});
  save_step(fs, "step_3");
  CHECK(names(fs) == std::vector<std::string>{"step_3"});
}

TEST_CASE("what a pointer names stays, however it is written") {
  const auto [pointer, text] =
      GENERATE(table<std::string, std::string>({{"latest", "step_1"},
                                                {"latest", "step_1\n"},
                                                {"latest", "./step_1"},
                                                {"latest", "/run/step_1/"},
                                                {"latest_universal", "step_1"},
                                                {"latest_checkpointed_iteration.txt", "step_1"}}));
  CAPTURE(pointer, text);
  MemoryFileSystem fs;
  save_step(fs, "step_1");
  fs.write_file("/run/" + pointer, as_bytes(text));
  save_step(fs, "step_2");
  save_step(fs, "step_3");
  CHECK(names(fs) == std::vector<std::string>{"step_1", "step_3"});
}

TEST_CASE("what a link or one of several pointers names stays") {
  MemoryFileSystem fs;
  save_step(fs, "step_1");
  save_step(fs, "step_2", 2);
  fs.add_symlink("/run/latest", "step_1");
  fs.write_file("/run/latest_universal", as_bytes("step_2"));
  save_step(fs, "step_3");
  save_step(fs, "step_4");
  CHECK(names(fs) == std::vector<std::string>{"step_1", "step_2", "step_4"});
}

TEST_CASE("what Megatron's tracker counts stays beside what latest names") {
  MemoryFileSystem fs;
  for (const char* name : {"iter_0000010", "iter_0000020", "iter_0000030"}) save_step(fs, name, 3);
  fs.write_file("/run/latest_checkpointed_iteration.txt", as_bytes("10"));
  fs.write_file("/run/latest", as_bytes("iter_0000020"));
  save_step(fs, "iter_0000040");
  CHECK(names(fs) == std::vector<std::string>{"iter_0000010", "iter_0000020", "iter_0000040"});
}

TEST_CASE("what another process points to in that moment stays") {
  const bool early = GENERATE(true, false);
  MemoryFileSystem fs;
  save_step(fs, "step_1");
  OtherProcess other(fs, early);
  save_step(other, "step_2");
  CHECK(names(fs) == std::vector<std::string>{"step_1", "step_2"});
  fs.write_file("/run/latest", as_bytes("step_2"));
  save_step(fs, "step_3");
  CHECK(names(fs) == std::vector<std::string>{"step_2", "step_3"});
}

}  // namespace live_retention_test
