// The rules for writing to file systems that can fail, a test each; those that other files prove:
//
//   write, sync, close, rename, sync the folder    stage_test.cc, stage_fault_test.cc,
//                                                  commit_model_test.cc
//   every return is checked                        call_faults_test.cc (each call with each errno)
//   EINTR retried, on close never                  here; call_faults_test.cc (EINTR at every call)
//   short transfers of any length                  call_faults_test.cc, posix_transfer_test.cc
//   ENOSPC and EDQUOT as late as sync and close    here; call_faults_test.cc, full_disk_test.cc
//   after a failed sync the file is lost           here; call_faults_test.cc (0 syncs repeated)
//   first publication replaces nothing             here; file_system_contract_test.cc
//   a file that shrinks under its reader           posix_transfer_test.cc
//   what ranks wrote is confirmed over the group   live_failure_test.cc, live_meetings_test.cc
//
// Each test prints how many cases it tried, and fails below what it promises.
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <tessera/base/error.h>
#include <tessera/live/save.h>
#include <tessera/storage/aligned_buffer.h>
#include <tessera/storage/observed_file_system.h>
#include <tessera/storage/stage.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>

#include "lib/storage/posix/options.h"
#include "tests/faults/system_calls.h"
#include "tests/storage/storage_fixture.h"
#include "tests/support/run_command.h"

using namespace tessera;
using namespace tessera::faults;
using tessera::test::message_of;
using tessera::testing::TemporaryFolder;

namespace {

namespace stdfs = std::filesystem;

void put(FileSystem& fs, const std::string& path, std::size_t size) {
  AlignedBuffer buffer(size);
  std::memset(buffer.data(), 5, size);
  const auto file = fs.create(path, IoMode::kDirect);
  file->allocate(size);
  file->write_at(0, {buffer.data(), size});
  file->sync();
  file->close();
}

/// What a rule was tried with.
void tried(const char* rule, int cases, int promised) {
  fmt::print("file-system rule: {}: {} cases, all as it says\n", rule, cases);
  REQUIRE(cases >= promised);
}

std::string slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// What is done to folders, in order.
class FolderLog final : public ObservedFileSystem {
 public:
  using ObservedFileSystem::ObservedFileSystem;
  mutable std::vector<std::string> lines;

 protected:
  void after(const IoEvent& event) const override {
    if (event.op == IoOp::kCreateDirectory) lines.push_back("make " + event.path);
    if (event.op == IoOp::kSyncDirectory) lines.push_back("sync " + event.path);
    if (event.op == IoOp::kRenameNew) lines.push_back("rename to " + std::string(event.other));
  }
};

}  // namespace

TEST_CASE("rule: a new folder is synced in its parent before anything is published in it") {
  const TemporaryFolder t;
  const auto fs = make_posix_file_system();
  const FolderLog log(*fs);
  std::vector<float> w(8, 1);
  LiveState state;
  state.add("w", {DType::kFloat32, {8}, {}, w.data()});
  SaveOptions options;
  options.file_system = const_cast<FolderLog*>(&log);
  const auto ranks = single_rank();
  save(t / "a/b/step_1", state, *ranks, options);
  const auto at = [&](const std::string& line) {
    const auto found = std::ranges::find(log.lines, line);
    INFO(line);
    REQUIRE(found != log.lines.end());
    return found - log.lines.begin();
  };
  const std::string root = stdfs::canonical(t.path()).string();
  CHECK(at("make " + t.path() + "/a") < at("sync " + t.path()));
  CHECK(at("make " + t.path() + "/a/b") < at("sync " + t.path() + "/a"));
  const auto published = at("rename to " + root + "/a/b/step_1");
  CHECK(at("sync " + t.path() + "/a") < published);
  const auto last =
      std::find(log.lines.begin() + published, log.lines.end(), "sync " + root + "/a/b");
  CHECK(last != log.lines.end());
  tried("a new folder is synced in its parent", 2, 2);
}

TEST_CASE("rule: a rename never crosses a mount") {
  const TemporaryFolder t;
  struct stat here {
  }, there{};
  const bool other = ::stat(t.path().c_str(), &here) == 0 && ::stat("/dev/shm", &there) == 0 &&
                     here.st_dev != there.st_dev && ::access("/dev/shm", W_OK) == 0;
  const auto fs = make_posix_file_system();
  put(*fs, t / "x", 10);
  if (other) {
    const std::string to = "/dev/shm/" + stdfs::path(t.path()).filename().string();
    CHECK(message_of([&] { fs->rename_new(t / "x", to); }).find(std::strerror(EXDEV)) !=
          std::string::npos);
    CHECK_FALSE(stdfs::exists(to));
  } else {
    fmt::print("renames across mounts: no second file system here\n");
  }
  // And none is needed: what is staged lies beside its final name, so on the same file system.
  arm({.at = 1, .error = EXDEV, .function = "renameat2"});
  const std::string message = message_of([&] { fs->rename_new(t / "x", t / "y"); });
  disarm();
  CHECK(message.find(std::strerror(EXDEV)) != std::string::npos);
  CHECK(stdfs::exists(t / "x"));
  tried("a rename never crosses a mount", other ? 2 : 1, 1);
}

TEST_CASE("rule: what a rename cannot replace is refused before any work") {
  const TemporaryFolder t;
  stdfs::create_directory(t / "plain");
  const auto fs = make_posix_file_system();
  StageOptions options;
  options.force = true;
  CHECK(message_of([&] { Stage::check(*fs, "/proc", options); }).find("/proc is a mount point") !=
        std::string::npos);
  CHECK_NOTHROW(Stage::check(*fs, t / "plain", options));
  tried("a mount point is never replaced", 2, 2);
}

TEST_CASE("rule: a first publication replaces nothing") {
  const TemporaryFolder t;
  int cases = 0;
  for (const bool has_flags : {true, false}) {
    storage::PosixOptions options;
    options.use_renameat2 = has_flags;
    const auto fs = make_posix_file_system(options);
    for (const char* kind : {"file", "folder", "empty folder", "link", "pipe"}) {
      for (const bool folder : {false, true}) {
        const std::string from = t / "from", to = t / "to";
        const std::string what = kind;
        if (folder) stdfs::create_directory(from);
        if (!folder) put(*fs, from, 10);
        if (what == "file") put(*fs, to, 20);
        if (what.ends_with("folder")) stdfs::create_directory(to);
        if (what == "folder") put(*fs, to + "/x", 20);
        if (what == "link") stdfs::create_symlink("nowhere", to);
        if (what == "pipe") REQUIRE(::mkfifo(to.c_str(), 0600) == 0);
        INFO(what << ", folder " << folder << ", flags " << has_flags);
        const std::string message = message_of([&] { fs->rename_new(from, to); });
        CHECK(message.find("already exists") != std::string::npos);
        CHECK(stdfs::exists(from));
        CHECK(stdfs::exists(stdfs::symlink_status(to)));
        stdfs::remove_all(from);
        stdfs::remove_all(to);
        ++cases;
      }
    }
  }
  tried("a first publication replaces nothing", cases, 20);
}

namespace {

/// What comes of work whose first call of `function` fails, and of the same once more.
struct Attempt {
  std::string first, again;
  CallReport report;
};
Attempt attempt(const char* function, int error, const std::function<void()>& work) {
  arm({.at = 1, .error = error, .function = function});
  Attempt out;
  out.first = message_of(work);
  if (!out.first.empty()) out.again = message_of(work);
  out.report = disarm();
  INFO(function << ", " << std::strerror(error));
  CHECK(out.report.injected == 1);
  return out;
}

}  // namespace

TEST_CASE(
    "rule: open, read and write go on when interrupted; a sync's or a close's word is final") {
  const TemporaryFolder t;
  const auto fs = make_posix_file_system();
  int going_on = 0, final = 0;
  for (const char* function : {"open", "pwrite", "openat2", "pread"}) {
    const std::string name = std::string("f") + function;
    const Attempt got = attempt(function, EINTR, [&] {
      const auto file = fs->create(t / name, IoMode::kBuffered);
      file->write_at(0, as_bytes("content"));
      file->sync();
      file->close();
      std::byte bytes[7];
      fs->open_directory(t.path())->open(name)->read_at(0, bytes);
      CHECK(as_text(bytes) == "content");
    });
    CAPTURE(function, got.first);
    CHECK(got.first.empty());
    ++going_on;
  }
  for (const bool closes : {false, true}) {
    for (const int error : {EINTR, EIO, ENOSPC, EDQUOT}) {
      const std::string path = t / std::to_string(final);
      const auto file = fs->create(path, IoMode::kBuffered);
      file->write_at(0, as_bytes("content"));
      if (closes) file->sync();
      const Attempt got = attempt(closes ? "close" : "fsync", error,
                                  [&] { closes ? file->close() : file->sync(); });
      CAPTURE(closes, std::strerror(error), got.first, got.again);
      CHECK(got.first.find(path) != std::string::npos);
      CHECK(got.first.find(std::strerror(error)) != std::string::npos);
      const bool is_full = error == ENOSPC || error == EDQUOT;
      CHECK(got.first.starts_with(is_full ? "resource exhausted" : "i/o error"));
      CHECK(got.again.find("cannot be used any more") != std::string::npos);
      CHECK(got.report.calls == 1);  // neither retried nor asked again
      ++final;
    }
  }
  tried("open, read and write go on when interrupted", going_on, 4);
  tried("what a sync or a close says is final, a full disk or quota as late as there", final, 8);
}

TEST_CASE("rule: one call moves less than 2 GiB") {
  CHECK(storage::PosixOptions{}.max_transfer_bytes <= 0x7ffff000);
  // Transfers of more than that are cut, here at sizes around the border of a smaller one.
  const TemporaryFolder t;
  storage::PosixOptions options;
  options.max_transfer_bytes = 2 * kIoAlignment;
  const auto fs = make_posix_file_system(options);
  int cases = 0;
  for (const std::size_t size : {std::size_t{1}, 2 * kIoAlignment - 1, 2 * kIoAlignment,
                                 2 * kIoAlignment + 1, 7 * kIoAlignment + 5}) {
    const std::string name = "f" + std::to_string(cases++);
    put(*fs, t / name, size);
    AlignedBuffer back(size);
    fs->open_directory(t.path())->open(name)->read_at(0, {back.data(), size});
    CHECK(std::string(as_text({back.data(), size})) == std::string(size, '\5'));
  }
  tried("one call moves less than 2 GiB", cases, 5);
}

TEST_CASE("rule: a tensor past 2 GiB goes through", "[.soak]") {
  const TemporaryFolder t;
  constexpr std::size_t kSize = (std::size_t{9} << 28) + 123;  // 2.25 GiB
  void* memory = ::mmap(nullptr, kSize, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  static_cast<char*>(memory)[kSize - 1] = 'z';
  const auto fs = make_posix_file_system();
  const auto file = fs->create(t / "x", IoMode::kDirect);
  file->write_at(0, {static_cast<const std::byte*>(memory), kSize});
  file->sync();
  file->close();
  std::byte last[1];
  const auto reading = fs->open_directory(t.path())->open("x");
  REQUIRE(reading->size_bytes() == kSize);
  reading->read_at(kSize - 1, last);
  CHECK(last[0] == std::byte{'z'});
  static_cast<char*>(memory)[kSize - 1] = 0;
  reading->read_at(0, {static_cast<std::byte*>(memory), kSize});
  CHECK(static_cast<char*>(memory)[kSize - 1] == 'z');
  ::munmap(memory, kSize);
}

TEST_CASE("rule: room is reserved first and where that is unknown compared with what is free") {
  const TemporaryFolder t;
  const auto fs = make_posix_file_system();
  for (const int unknown : {EOPNOTSUPP, ENOSYS}) {
    arm({.at = 1, .error = unknown, .sticky = true, .function = "fallocate"});
    put(*fs, t / "x", 40'000);
    const auto file = fs->create(t / "y", IoMode::kBuffered);
    const std::string message =
        message_of([&] { file->allocate(fs->free_bytes(t.path()) + (std::uint64_t{1} << 40)); });
    const CallReport report = disarm();
    // The second never asks for its room: free space is compared first, so that a disk is not
    // filled to find out.
    CHECK(report.injected == 1);
    CHECK(slurp(t / "x") == std::string(40'000, '\5'));
    CHECK(message.find(std::strerror(ENOSPC)) != std::string::npos);
    CHECK(message.find(t / "y") != std::string::npos);
    stdfs::remove(t / "x");
    stdfs::remove(t / "y");
  }
  tried("room is reserved first", 4, 4);
}

TEST_CASE("rule: a stale handle is opened again") {
  const TemporaryFolder t;
  const auto fs = make_posix_file_system();
  put(*fs, t / "x", 100);
  arm({.at = 1, .error = ESTALE, .function = "openat2"});
  const auto file = fs->open_directory(t.path())->open("x");
  CHECK(disarm().injected == 1);
  CHECK(file->size_bytes() == 100);
  // One that stays stale is an error, not a loop.
  arm({.at = 1, .error = ESTALE, .sticky = true, .function = "openat2"});
  const std::string message = message_of([&] { fs->open_directory(t.path())->open("x"); });
  disarm();
  CHECK(message.find(std::strerror(ESTALE)) != std::string::npos);
  tried("a stale handle is opened again, and not for ever", 2, 2);
}

TEST_CASE("rule: direct I/O steps down the ladder and every rung gives the same bytes") {
  const TemporaryFolder t;
  const auto fs = make_posix_file_system();
  constexpr std::size_t kSize = 8 * kIoAlignment + 77;
  int rung = 0;
  // Direct; refused at its open (the second one: the first is the buffered descriptor); refused at
  // the first transfer; and in the middle of the transfers.
  const CallFault rungs[] = {{},
                             {.at = 2, .error = EINVAL, .function = "open"},
                             {.at = 1, .error = EINVAL, .function = "pwrite"},
                             {.at = 2, .error = EINVAL, .function = "pwrite"}};
  for (const CallFault& fault : rungs) {
    const std::string path = t / ("f" + std::to_string(rung++));
    const auto fresh = make_posix_file_system();
    arm(fault);
    const std::string message = message_of([&] { put(*fresh, path, kSize); });
    const CallReport report = disarm();
    INFO("rung " << rung << ", " << message);
    // A refusal of the page cache's own descriptor is an error; what was refused directly is not.
    if (message.empty()) CHECK(slurp(path) == std::string(kSize, '\5'));
    if (!message.empty()) CHECK((report.function == "pwrite" && fault.at == 2));
    if (fault.at != 0 && report.function == "open") CHECK(report.injected == 1);
  }
  put(*fs, t / "whole", kSize);
  for (const std::uint64_t at : {0u, 1u}) {
    arm({.at = at, .error = EINVAL, .function = "pread"});
    AlignedBuffer buffer(9 * kIoAlignment);
    fs->open_directory(t.path())
        ->open("whole", IoMode::kDirect)
        ->read_at(0, {buffer.data(), 9 * kIoAlignment});
    disarm();
    CHECK(std::memcmp(buffer.data(), std::string(kSize, '\5').data(), kSize) == 0);
    ++rung;
  }
  tried("direct I/O steps down the ladder, the bytes stay", rung, 6);
}

TEST_CASE("rule: nothing is read or written through a mapping") {
  int files = 0;
  for (const auto& entry : stdfs::recursive_directory_iterator(TESSERA_SOURCE_DIR "/lib")) {
    if (entry.path().extension() != ".cc" && entry.path().extension() != ".h") continue;
    ++files;
    INFO(entry.path());
    const std::string text = slurp(entry.path());
    for (auto at = text.find("mmap("); at != std::string::npos; at = text.find("mmap(", at + 1)) {
      const std::string call = text.substr(at, text.find(';', at) - at);
      CHECK(call.find("MAP_ANONYMOUS, -1") != std::string::npos);  // memory, and of no file
    }
  }
  tried("nothing is read or written through a mapping (files of lib/)", files, 100);
}
