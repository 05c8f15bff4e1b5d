// A conversion killed with SIGKILL at its n-th write goes on with --resume: hardly anything is
// written twice, and the end is the same to the byte. What a dry run promised holds, and what will
// not fit is refused before any work.
#include <fcntl.h>
#include <fmt/format.h>
#include <malloc.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <tessera/base/error.h>
#include <tessera/ops/convert.h>
#include <tessera/storage/observed_file_system.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>

#include "tests/support/convert_case.h"
#include "tests/support/run_command.h"
#include "tests/support/sanitized.h"

namespace restart_killed_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

namespace stdfs = std::filesystem;

constexpr std::uint64_t kSourceBytes = std::uint64_t{48} << 20;
constexpr std::uint64_t kMemoryLimit = std::uint64_t{4} << 20;

/// One file of six tensors, every element another.
void make_source(const std::string& path) {
  constexpr std::uint64_t kRows = kSourceBytes / 6 / 4096;
  std::string header = "{";
  for (std::uint64_t i = 0; i < 6; ++i)
    header += fmt::format(R"({}"w{}":{{"dtype":"F32","shape":[{},1024],"data_offsets":[{},{}]}})",
                          i == 0 ? "" : ",", i, kRows, i * kRows * 4096, (i + 1) * kRows * 4096);
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = header.size();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), 8);
  file << header;
  std::vector<std::uint32_t> block(1 << 16);
  for (std::uint64_t at = 0; at < kRows * 6 * 1024; at += block.size()) {
    for (std::size_t i = 0; i < block.size(); ++i)
      block[i] = static_cast<std::uint32_t>((at + i) * 2654435761u);
    const std::uint64_t left = kRows * 6 * 1024 - at;
    file.write(reinterpret_cast<const char*>(block.data()),
               static_cast<std::streamsize>(std::min<std::uint64_t>(left, block.size()) * 4));
  }
}

ConvertOptions options_for(const std::string& from, const std::string& to) {
  ConvertOptions options = convert_options(from, to, 3, "torch-dcp");
  options.memory_limit_bytes = kMemoryLimit;
  options.threads = 2;
  return options;
}

/// Counts the bytes that reached data files, where the parent sees them; kills after the n-th
/// write.
class DeadlyDisk final : public ObservedFileSystem {
 public:
  DeadlyDisk(FileSystem& inner, int at, std::string_view suffix, std::atomic<std::uint64_t>& bytes)
      : ObservedFileSystem(inner), left_(at), suffix_(suffix), bytes_(bytes) {}

 protected:
  void after(const IoEvent& event) const override {
    if (event.op != IoOp::kWrite || !event.path.ends_with(suffix_)) return;
    bytes_ += event.length;
    if (left_.fetch_sub(1) == 1) ::kill(::getpid(), SIGKILL);
  }

 private:
  mutable std::atomic<int> left_;
  std::string_view suffix_;  // of data files
  std::atomic<std::uint64_t>& bytes_;
};

/// Bytes that had been written to data files when the run was killed; 0: it ended first.
std::uint64_t killed_at(const ConvertOptions& options, int at,
                        std::string_view suffix = ".distcp") {
  auto* shared = static_cast<std::atomic<std::uint64_t>*>(
      ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  REQUIRE(shared != MAP_FAILED);
  const pid_t pid = ::fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    try {
      const auto fs = make_posix_file_system();
      DeadlyDisk deadly(*fs, at, suffix, *shared);
      convert(deadly, options);
    } catch (...) {
      ::_exit(1);
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  const std::uint64_t bytes = *shared;
  ::munmap(shared, 4096);
  if (WIFSIGNALED(status)) return bytes;
  REQUIRE(WEXITSTATUS(status) == 0);
  return 0;
}

std::map<std::string, std::string> files_of(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : stdfs::directory_iterator(folder)) {
    std::ifstream in(entry.path(), std::ios::binary);
    files[entry.path().filename()].assign(std::istreambuf_iterator<char>(in), {});
  }
  return files;
}

}  // namespace

TEST_CASE("a killed conversion goes on and writes less than 5 percent of what was finished again",
          "[wide]") {
  const QuickFolder folder;
  const std::string source = folder / "source.safetensors", out = folder / "out";
  make_source(source);
  const auto fs = make_posix_file_system();
  convert(*fs, options_for(source, folder / "want"));
  const auto want = files_of(folder / "want");
  std::mt19937_64 random(13);
  int kills = 0, late = 0;
  double worst = 0;
  std::uint64_t finished_all = 0, again_all = 0;
  for (int round = 0; kills < 12; ++round) {
    REQUIRE(round < 60);
    ConvertOptions options = options_for(source, out);
    const std::uint64_t finished = killed_at(options, static_cast<int>(random() % 90) + 1);
    if (finished == 0) {
      stdfs::remove_all(out);
      continue;
    }
    ++kills;
    INFO("seed 13, round " << round << ", killed after " << finished << " bytes");
    REQUIRE_FALSE(stdfs::exists(out));
    options.resume = true;
    const ConvertReport report = convert(*fs, options);
    REQUIRE(report.published);
    REQUIRE(report.resumed_bytes + report.bytes_written == report.output_bytes);
    REQUIRE(report.resumed_bytes <= finished);
    const std::uint64_t again = finished - report.resumed_bytes;
    finished_all += finished;
    again_all += again;
    if (finished > kSourceBytes / 2) {
      ++late;
      const double share = static_cast<double>(again) / static_cast<double>(finished);
      worst = std::max(worst, share);
      REQUIRE(share < 0.05);
    }
    REQUIRE(files_of(out) == want);
    stdfs::remove_all(out);
  }
  fmt::print(
      "restarts: {} SIGKILLs at a write (seed 13), {} MiB had been finished, {:.1f} MiB written "
      "again "
      "({:.1f} %; at most {:.1f} % of {} kills past the half); every end the same to the byte\n",
      kills, finished_all >> 20, static_cast<double>(again_all) / (1 << 20),
      100.0 * static_cast<double>(again_all) / static_cast<double>(finished_all), 100 * worst,
      late);
  REQUIRE(late > 0);
  REQUIRE(again_all * 20 < finished_all);

  // Killed, and then the source was touched, which changes nothing, or is another one.
  for (const bool is_other : {false, true}) {
    REQUIRE(killed_at(options_for(source, out), 20) > 0);
    const auto time = stdfs::last_write_time(source);
    if (is_other) {
      std::fstream file(source, std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(-1, std::ios::end);
      file.put('!');
    }
    stdfs::last_write_time(source, is_other ? time : time + std::chrono::seconds(5));
    ConvertOptions options = options_for(source, out);
    options.resume = true;
    const ConvertReport report = convert(*fs, options);
    CHECK((report.resumed_bytes > 0) == !is_other);
    CHECK((files_of(out) == want) == !is_other);
    stdfs::remove_all(out);
  }
}

TEST_CASE("a killed conversion to weight deltas goes on, or starts anew where its base is another",
          "[kills][wide]") {
  const QuickFolder folder;
  const std::string base = folder / "base.safetensors", out = folder / "out";
  make_source(base);
  stdfs::copy_file(base, folder / "source.safetensors");
  std::fstream file(folder / "source.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  std::mt19937_64 random(5);
  for (std::uint64_t at = 4096; at + 4096 < kSourceBytes; at += 4096) {
    file.seekp(static_cast<std::streamoff>(at));
    for (int i = 0; i < 4096; ++i) file.put(static_cast<char>(random()));
  }
  file.close();
  const auto fs = make_posix_file_system();
  const auto options_to = [&](const std::string& to) {
    ConvertOptions options = options_for(folder / "source.safetensors", to);
    options.to.clear();
    options.target.world_size.reset();
    options.delta_from = base;
    return options;
  };
  convert(*fs, options_to(folder / "want"));
  const auto want = files_of(folder / "want");
  for (const int at : {1, 3, 5}) {
    CAPTURE(at);
    REQUIRE(killed_at(options_to(out), at, ".safetensors") > 0);
    REQUIRE_FALSE(stdfs::exists(out));
    ConvertOptions again = options_to(out);
    again.resume = true;
    REQUIRE(convert(*fs, again).published);
    CHECK(files_of(out) == want);
    stdfs::remove_all(out);
  }
  REQUIRE(killed_at(options_to(out), 5, ".safetensors") > 0);
  std::fstream other(base, std::ios::in | std::ios::out | std::ios::binary);
  other.seekp(-1, std::ios::end);
  other.put('!');
  other.close();
  ConvertOptions again = options_to(out);
  again.resume = again.verify = true;
  const ConvertReport report = convert(*fs, again);
  CHECK(report.resumed_bytes == 0);
  CHECK(report.verified);
}

namespace {

/// A line of /proc/self/status, in bytes.
std::uint64_t status_bytes(const std::string& key) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(key + ":"))
      return std::strtoull(line.c_str() + key.size() + 1, nullptr, 10) << 10;
  return 0;
}

/// Refuses to have room, and counts what is changed all the same.
class SmallDisk final : public ObservedFileSystem {
 public:
  SmallDisk(FileSystem& inner, std::uint64_t room) : ObservedFileSystem(inner), room_(room) {}
  std::uint64_t free_bytes(const std::string&) const override { return room_; }
  int files_made() const { return made_; }
  /// The most that this process held at a call of the file system: while a buffer is in use, it is
  /// read into and written from. Pages of the program itself are no part of it.
  std::uint64_t most_memory() const { return most_memory_; }

 protected:
  void before(const IoEvent&) const override { measure(); }
  void after(const IoEvent& event) const override {
    made_ += event.op == IoOp::kWrite && event.path.ends_with(".distcp");
    measure();
  }

 private:
  void measure() const {
    const std::uint64_t now = status_bytes("RssAnon");
    for (std::uint64_t most = most_memory_;
         most < now && !most_memory_.compare_exchange_weak(most, now);) {
    }
  }

  std::uint64_t room_;
  mutable std::atomic<int> made_{0};
  mutable std::atomic<std::uint64_t> most_memory_{0};
};

Code code_of(FileSystem& fs, const ConvertOptions& options) {
  try {
    convert(fs, options);
    return Code::kOk;
  } catch (const Error& error) {
    return error.code();
  }
}

}  // namespace

TEST_CASE("a dry run gives exact bytes and a bound on memory that the run keeps") {
  const QuickFolder folder;
  const std::string source = folder / "source.safetensors";
  make_source(source);
  const auto fs = make_posix_file_system();
  ConvertOptions options = options_for(source, folder / "out");
  options.dry_run = true;
  const ConvertReport plan = convert(*fs, options);
  CHECK_FALSE(stdfs::exists(folder / "out"));
  CHECK(plan.free_bytes > 0);
  CHECK(plan.temporary_bytes == 0);

  // No room: refused before the first byte. Just room enough: done.
  SmallDisk small(*fs, plan.output_bytes + plan.seal_bytes - 1);
  CHECK(code_of(small, options) == Code::kResourceExhausted);
  options.dry_run = false;
  CHECK(code_of(small, options) == Code::kResourceExhausted);
  CHECK(small.files_made() == 0);
  options.memory_limit_bytes = std::uint64_t{1} << 50;
  CHECK(code_of(*fs, options) == Code::kResourceExhausted);
  CHECK_FALSE(stdfs::exists(folder / "out"));
  options.memory_limit_bytes = kMemoryLimit;

  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t pid = ::fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    // What is freed goes back at once, what tests before this one freed as well: how much of it the
    // allocator would keep depends on which thread is faster.
    ::mallopt(M_MMAP_THRESHOLD, 64 << 10);
    ::mallopt(M_TRIM_THRESHOLD, 64 << 10);
    ::malloc_trim(0);
    const std::uint64_t before = status_bytes("RssAnon");
    SmallDisk enough(*fs, plan.output_bytes + plan.seal_bytes);
    int exit = 1;
    try {
      exit = convert(enough, options).published ? 0 : 1;
    } catch (...) {
    }
    const std::uint64_t grown = enough.most_memory() - before;
    (void)!::write(ends[1], &grown, sizeof grown);
    ::_exit(exit);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  REQUIRE(WIFEXITED(status));
  REQUIRE(WEXITSTATUS(status) == 0);
  std::uint64_t grown = 0;
  REQUIRE(::read(ends[0], &grown, sizeof grown) == sizeof grown);
  std::uint64_t bytes = 0;
  for (const auto& [name, content] : files_of(folder / "out"))
    if (name != "tessera.manifest.json") bytes += content.size();
  CHECK(bytes == plan.output_bytes);
  constexpr std::uint64_t kThreads = std::uint64_t{2} << 20;  // their stacks and small heaps
  if (!kSanitized) {
    CHECK(grown > kMemoryLimit / 4);  // it was measured
    CHECK(grown <= plan.peak_memory_bound + kThreads);
  }
  fmt::print(
      "preflight: {} output bytes promised and written; peak memory bound {:.1f} MiB, {:.1f} MiB "
      "grown; "
      "refused with exit 6 before the first byte for lack of disk and of memory\n",
      plan.output_bytes, static_cast<double>(plan.peak_memory_bound) / (1 << 20),
      static_cast<double>(grown) / (1 << 20));
}

}  // namespace restart_killed_test
