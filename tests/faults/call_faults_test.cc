// Every call that reaches the C library's files fails once, and from then on for good, with every
// errno that matters; and every transfer is cut short. The answer is right, or an error that names
// path and errno; the old checkpoint stays whole, no descriptor stays open, nothing is synced
// twice.
#include <fmt/format.h>
#include <sys/time.h>
#include <tessera/base/error.h>
#include <tessera/base/interrupted.h>
#include <tessera/base/small_file.h>
#include <tessera/live/load.h>
#include <tessera/live/save.h>
#include <tessera/ops/convert.h>
#include <tessera/ops/hash.h>
#include <tessera/ops/verify.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <functional>

#include "tests/faults/scene.h"
#include "tests/faults/system_calls.h"

using namespace tessera;
using namespace tessera::faults;

namespace {

constexpr int kErrors[] = {EIO, ENOSPC, EDQUOT, EINTR, ESTALE, EACCES, EMFILE, ENOMEM};

/// One kind of work. `run` throws Error, or returns a description of its result that must be
/// `expected`.
struct Work {
  std::string name;
  std::function<void()> prepare;  // the old state, whatever the run before left
  std::function<std::string()> run;
  std::string expected;
  std::function<std::string()> visible;  // for writers: "old", "new", or "between"; else a mix
};

/// Ends this process (SIGPROF) after a minute of processor time, as wall time says little on a busy
/// machine.
class CpuLimit {
 public:
  CpuLimit() { set(60); }
  ~CpuLimit() { set(0); }

 private:
  static void set(long seconds) {
    const itimerval timer{{0, 0}, {seconds, 0}};
    ::setitimer(ITIMER_PROF, &timer, nullptr);
  }
};

struct Totals {
  std::uint64_t injected = 0;
  std::uint64_t right = 0;
  std::uint64_t refused = 0;
  std::uint64_t sites = 0;
  std::uint64_t fatal = 0;  // of a file being written: its sync or its close
  double longest_ms = 0;
};

/// What the errors of `function` may leave out of the message: EACCES of a lock says that another
/// holder has it.
bool says_otherwise(const CallReport& report, int error) {
  return report.function == "fcntl" && error == EACCES;
}

void check_error(const Error& thrown, const CallReport& report, int error,
                 const std::string& folder) {
  const std::string text = thrown.what();
  INFO(text);
  CHECK(thrown.code() != Code::kInternal);
  CHECK(thrown.code() != Code::kCorrupt);  // the disk's failure is not the checkpoint's
  CHECK(text.find(folder) != std::string::npos);
  if (!says_otherwise(report, error)) CHECK(text.find(std::strerror(error)) != std::string::npos);
}

/// One run under one fault; false when the fault came too late.
bool inject(const Work& work, const CallFault& fault, const std::string& folder, Totals& totals) {
  work.prepare();
  const int descriptors = count_descriptors();
  const auto start = std::chrono::steady_clock::now();
  std::optional<Error> thrown;
  std::string result;
  arm(fault);
  try {
    result = work.run();
  } catch (const Error& error) {
    thrown = error;
  }
  const CallReport report = disarm();
  const double ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  totals.longest_ms = std::max(totals.longest_ms, ms);
  INFO(work.name << ", call " << fault.at << " (" << report.function << "), "
                 << std::strerror(fault.error) << (fault.sticky ? ", sticky" : "") << ", shortened "
                 << static_cast<int>(fault.shortened) << (fault.endless ? ", endless" : ""));
  REQUIRE(count_descriptors() == descriptors);
  REQUIRE(report.sync_retries == 0);
  if (report.injected > 0) ++totals.injected;
  if (report.was_written_file) ++totals.fatal;
  if (thrown) {
    ++totals.refused;
    REQUIRE(report.injected > 0);
    REQUIRE(fault.shortened == Shortened::kNot);
    check_error(*thrown, report, fault.error, folder);
  } else {
    ++totals.right;
    // A verifier says what it could not read; that is its answer.
    const bool told = result.find(std::strerror(fault.error)) != std::string::npos &&
                      result.find(folder) != std::string::npos && report.injected > 0;
    if (!told) REQUIRE(result == work.expected);
    REQUIRE_FALSE(report.was_written_file);  // fatal to the save
  }
  if (work.visible) {
    const std::string now = work.visible();
    const bool told = thrown && std::string(thrown->what()).find("whole") != std::string::npos;
    INFO(now << ", thrown: " << (thrown ? thrown->what() : "nothing"));
    REQUIRE((now == "old" || now == "new" || (now == "between" && (told || fault.sticky))));
    if (!thrown) REQUIRE(now == "new");
  }
  return report.calls >= fault.at;
}

void inject_everywhere(const Work& work, const std::string& folder, Totals& totals) {
  for (const int error : kErrors) {
    for (const bool sticky : {false, true}) {
      CallFault fault{.error = error, .sticky = sticky};
      for (fault.at = 1; inject(work, fault, folder, totals); ++fault.at) REQUIRE(fault.at < 3000);
      if (error == EIO && !sticky) totals.sites += fault.at - 1;
    }
  }
}

void shorten_everywhere(const Work& work, const std::string& folder, Totals& totals) {
  for (const Shortened how : {Shortened::kOneByte, Shortened::kHalf, Shortened::kAllButOne}) {
    for (const bool sticky : {false, true}) {
      CallFault fault{.sticky = sticky, .shortened = how};
      for (fault.at = 1; inject(work, fault, folder, totals); ++fault.at) {
        REQUIRE(fault.at < 3000);
        if (sticky) break;  // from the first on: all of them
      }
    }
  }
}

std::vector<Work> works(const Scene& scene) {
  std::vector<Work> list;
  const auto writer = [&](std::string name, std::function<void()> prepare,
                          std::function<void()> run, std::function<std::string()> visible) {
    prepare();
    REQUIRE(visible() == "old");
    run();
    REQUIRE(visible() == "new");
    const auto run_only = [run] {
      run();
      return std::string("done");
    };
    list.push_back({std::move(name), std::move(prepare), run_only, "done", visible});
  };
  writer(
      "save", [&scene] { scene.prepare_run(); }, [&scene] { scene.save_next(); },
      [&scene] { return scene.shown_run(); });
  writer(
      "reshard", [&scene] { scene.prepare_output(); }, [&scene] { scene.reshard(); },
      [&scene] { return scene.shown_output(); });
  writer(
      "convert to a file", [&scene] { scene.prepare_file(); }, [&scene] { scene.convert(); },
      [&scene] { return scene.shown_file(); });
  const auto reader = [&](std::string name, std::function<std::string()> run) {
    list.push_back({std::move(name), [] {}, run, run(), nullptr});
  };
  reader("load", [&scene] { return scene.load_source(); });
  reader("verify", [&scene] { return scene.verify_source(); });
  return list;
}

void print(const char* what, const Totals& totals) {
  fmt::print(
      "{}: {} call sites, {} faults injected, {} right answers, {} errors with path and errno; "
      "0 hangs (longest run {:.0f} ms), 0 descriptors left open, 0 syncs repeated\n",
      what, totals.sites, totals.injected, totals.right, totals.refused, totals.longest_ms);
}

}  // namespace

TEST_CASE("every file call fails with every errno: the answer is right or names path and errno") {
  const Scene scene;
  Totals totals;
  const CpuLimit limit;  // a loop ends the test; what waits for ever, the runner ends
  for (const Work& work : works(scene)) inject_everywhere(work, scene.folder(), totals);
  print("call faults", totals);
  fmt::print(
      "call faults: {} hit the sync or the close of a file being written: all ended the save\n",
      totals.fatal);
  REQUIRE(totals.fatal >= 300);
  REQUIRE(totals.injected >= totals.sites * 14);
  REQUIRE(totals.sites > 300);
  REQUIRE(totals.longest_ms < 10'000);
  std::string functions;
  for (const auto& [name, count] : injected_by_function())
    functions += fmt::format(" {} {}", name, count);
  fmt::print("call faults by function:{}\n", functions);
}

TEST_CASE("a call that is interrupted for ever ends in an error that names path and errno") {
  constexpr std::uint64_t kEvery = 3;  // call; each costs its 10,000 attempts
  const Scene scene;
  Totals totals;
  for (const Work& work : works(scene)) {
    const CpuLimit limit;
    CallFault fault{.error = EINTR, .sticky = true, .endless = true};
    for (fault.at = 1; inject(work, fault, scene.folder(), totals); fault.at += kEvery) {
      REQUIRE(fault.at < 3000);
      ++totals.sites;
    }
  }
  print("endless interruptions", totals);
  REQUIRE(totals.refused > totals.right);
  REQUIRE(totals.sites > 300);
}

TEST_CASE("a small file that is interrupted for ever gives up with its errno") {
  const Scene scene;
  const std::string path = scene.folder() + "/small";
  std::ofstream(path) << "text";
  const CpuLimit limit;
  for (const char* function : {"open", "read"}) {
    arm({.at = 1, .error = EINTR, .sticky = true, .endless = true, .function = function});
    std::string text;
    const int error = read_small_file(path, 100, text);
    const CallReport report = disarm();
    CHECK(error == EINTR);
    CHECK(report.injected == Interruptions::kMost);
    CHECK(text.empty());
  }
  std::string text = "before ";
  CHECK(read_small_file(path, 4, text) == 0);
  CHECK(text == "before text");
  CHECK(read_small_file(path, 3, text) == EFBIG);
  CHECK(read_small_file(path + "/none", 3, text) == ENOTDIR);
}

TEST_CASE("short transfers at every call change no byte") {
  const Scene scene;
  Totals totals;
  const CpuLimit limit;
  for (const Work& work : works(scene)) shorten_everywhere(work, scene.folder(), totals);
  print("short transfers", totals);
  REQUIRE(totals.refused == 0);
  REQUIRE(totals.injected > 100);
}
