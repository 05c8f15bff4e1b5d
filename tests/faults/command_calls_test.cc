// Whole commands whose file calls fail, from their start to their end, the n-th one or all from the
// n-th on: each ends with what it would have printed or made, or with its exit status for such a
// failure and one line on stderr that names a path and the errno. Nothing half made is visible, no
// stage is left behind that the next run would not take away. Never a crash, never a hang.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/faults/command_runs.h"

using namespace tessera::faults;
using namespace tessera::testing;

namespace {

namespace stdfs = std::filesystem;

const std::vector<int> kCallErrors{EIO, ENOSPC, EDQUOT, ESTALE, EMFILE, EINTR};
constexpr std::uint64_t kMostCalls = 5000;     // of one command; more are a loop
constexpr std::uint64_t kReadsEvery = 3;       // call of a reading command; in the soak all
constexpr std::uint64_t kStickyEvery = 5;      // call for good; in the soak all
constexpr std::uint64_t kPromisedReads = 500;  // runs with a failed call
constexpr std::uint64_t kPromisedWrites = 500;

struct FailedCall {
  std::uint64_t at = 0;
  int error = 0;
  bool sticky = false;
};

/// What fail_calls.cc reports.
struct FailReport {
  std::uint64_t calls = 0, injected = 0, sync_retries = 0;
  bool was_written_file = false;
  std::string function;
};

struct RunTotals {
  std::uint64_t sites = 0, injected = 0, right = 0, told = 0, listed = 0, left = 0;
  double longest_s = 0;
  std::vector<std::string> bad;
};

CommandResult run_with(const std::vector<std::string>& words, const FailedCall& call,
                       const QuickFolder& folder, FailReport& report) {
  CommandOptions options;
  options.timeout_seconds = 120;
  options.environment = {{"LD_PRELOAD", TESSERA_FAIL_CALLS},
                         {"TESSERA_FAIL_AT", std::to_string(call.at)},
                         {"TESSERA_FAIL_ERROR", std::to_string(call.error)},
                         {"TESSERA_FAIL_STICKY", call.sticky ? "1" : "0"},
                         {"TESSERA_FAIL_REPORT", folder / "report"}};
  stdfs::remove(folder / "report");
  const CommandResult result = run_command(words, options);
  report = {};
  std::ifstream stream(folder / "report");
  stream >> report.calls >> report.injected >> report.sync_retries >> report.was_written_file >>
      report.function;
  return result;
}

/// "COMMAND: ...", or its document, that names a path and the errno, and perhaps a hint; progress
/// goes before it.
bool complains_once(const std::string& text, int error) {
  std::istringstream lines(text);
  int complaints = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("{\"schema\":\"tessera.progress") || line.starts_with("hint: ")) continue;
    const bool names_both =
        line.find(std::strerror(error)) != std::string::npos &&
        (line.find('/') != std::string::npos || line.find("stdout") != std::string::npos);
    const bool is_complaint =
        line.starts_with("ckpt-") || line.starts_with("{\"schema\":\"tessera.error/1\"");
    if (!is_complaint || !names_both) return false;
    ++complaints;
  }
  return complaints == 1;
}

/// docs/commands.md, "Exit status".
int exit_for(int error) { return error == ENOSPC || error == EDQUOT ? 6 : 3; }

std::string told(const FailedCall& call, const FailReport& report) {
  return fmt::format("call {} ({}), {}{}", call.at, report.function, std::strerror(call.error),
                     call.sticky ? ", and all later ones" : "");
}

/// Every `stride`-th call in turn with one errno after the other, now and then for good;
/// `every_error`: each call with each, once and for good. `judge(result, call, report)` returns
/// what is wrong, or "".
template <class Judge>
void fail_each_call(const std::string& name, const std::vector<std::string>& words,
                    const QuickFolder& folder, std::uint64_t stride, bool every_error,
                    RunTotals& totals, const Judge& judge) {
  bool more = true;
  for (std::uint64_t at = 1; more; at += stride) {
    REQUIRE(at < kMostCalls);
    more = false;
    for (std::uint64_t i = 0; i < (every_error ? kCallErrors.size() : 1); ++i) {
      for (const bool sticky : {false, true}) {
        if (sticky && !every_error && at % kStickyEvery != 0) continue;
        const std::uint64_t turn = at + i + (sticky ? 2 : 0);
        const FailedCall call{at, kCallErrors[turn % kCallErrors.size()], sticky};
        FailReport report;
        const CommandResult result = run_with(words, call, folder, report);
        std::string wrong = judge(result, call, report);
        if (result.timed_out) wrong = "hangs";
        if (report.function.empty()) wrong = "ended without its last word";
        if (report.sync_retries != 0) wrong = "syncs a file again whose sync had failed";
        if (!wrong.empty()) {
          totals.bad.push_back(
              fmt::format("{}, {}: {}: {}", name, told(call, report), wrong, described(result)));
        }
        totals.longest_s = std::max(totals.longest_s, result.seconds);
        totals.injected += report.injected > 0;
        more = more || report.injected > 0;
      }
    }
    totals.sites += more;
  }
}

void conclude(const char* what, const RunTotals& totals, std::uint64_t promised) {
  fmt::print(
      "{}: {} call sites, {} runs with failed calls, {} right, {} ended with path and errno, {} "
      "listed it as a finding; {} stages left to the next run; {} wrong; longest run {:.2f} s\n",
      what, totals.sites, totals.injected, totals.right, totals.told, totals.listed, totals.left,
      totals.bad.size(), totals.longest_s);
  std::string all;
  for (std::size_t i = 0; i < totals.bad.size() && i < 40; ++i) all += totals.bad[i] + "\n";
  INFO(all);
  CHECK(totals.bad.empty());
  CHECK(totals.told > 0);
  CHECK(totals.left * 20 < totals.injected);
  CHECK(totals.injected >= promised);
}

void fail_reading_commands(bool every_error, RunTotals& totals) {
  const QuickFolder folder;
  const std::string source = sample("dcp/fsdp2_w2/checkpoint");
  const std::string sealed = folder / "sealed", file = folder / "one.safetensors";
  REQUIRE(reshard({source, sealed, "--world-size", "2"}).exit == 0);
  REQUIRE(convert({source, file}).exit == 0);
  const std::vector<std::vector<std::string>> verbs{
      {"summary", sealed},    {"ls", sealed},
      {"hash", sealed},       {"verify", "--full", sealed},
      {"stat", sealed},       {"verify", "--full", file},
      {"diff", sealed, file}, {"ls", case_path("torchsave/tied_views_zip")}};
  for (const auto& verb : verbs) {
    std::vector<std::string> words = verb;
    words.insert(words.begin(), built("ckpt-inspect"));
    words.insert(words.end(), {"--threads", "1", "--progress", "none"});
    const bool lists = verb.front() == "verify";
    if (lists) words.insert(words.end(), {"--format", "json"});  // findings in one line
    const CommandResult plain = run_command(words);
    INFO(verb.front() << ": " << described(plain));
    REQUIRE((plain.exit == 0 || plain.exit == 1));
    fail_each_call(
        verb.front(), words, folder, every_error ? 1 : kReadsEvery, every_error, totals,
        [&](const CommandResult& result, const FailedCall& call, const FailReport& report) {
          if (result.exit == plain.exit && result.out == plain.out) {
            ++totals.right;
            return std::string();
          }
          const std::string error = std::strerror(call.error);
          const bool is_told = report.injected > 0 && result.exit == exit_for(call.error) &&
                               complains_once(result.err, call.error);
          totals.told += is_told;
          if (is_told) return std::string(result.out.empty() ? "" : "half a result on stdout");
          // A verifier says what it could not read; that is its answer.
          const bool is_listed = lists && result.exit == 1 &&
                                 result.out.find(folder.path()) != std::string::npos &&
                                 result.out.find(error) != std::string::npos;
          totals.listed += is_listed;
          return std::string(is_listed ? "" : "neither right nor told:\n" + result.out);
        });
  }
}

bool leaves_stage(const QuickFolder& folder) {
  const auto names = folder.names();
  return std::ranges::any_of(names, [](const std::string& name) { return name.starts_with('.'); });
}

void fail_writing_commands(bool every_error, RunTotals& totals) {
  const QuickFolder folder;
  std::vector<Writing> all = writings(folder, "1");
  all.push_back({"show --npy",
                 folder / "w.npy",
                 {built("ckpt-inspect"), "show", sample("dcp/fsdp2_w2/checkpoint"),
                  "model.layers.0.norm.weight", "--npy", folder / "w.npy", "--threads", "1",
                  "--progress", "none"}});
  for (const Writing& writing : all) {
    const std::string seal = writing.output + ".tessera.json";
    const auto shown = [&] {
      auto files = tree(writing.output);
      for (const auto& [name, content] : tree(seal)) files["seal"] = content;
      return files;
    };
    const auto clear = [&] {
      stdfs::remove_all(writing.output);
      stdfs::remove(seal);
    };
    const CommandResult plain = run_command(writing.words);
    INFO(described(plain));
    REQUIRE(plain.exit == 0);
    const auto made = shown();
    auto made_without_seal = made;
    made_without_seal.erase("seal");
    REQUIRE_FALSE(made.empty());
    clear();
    fail_each_call(
        writing.name, writing.words, folder, 1, every_error, totals,
        [&](const CommandResult& result, const FailedCall& call, const FailReport& report) {
          const auto now = shown();
          const bool left = leaves_stage(folder);
          totals.left += left && !call.sticky;
          // A lost call of the clean-up itself, or of a publication that may not be undone on the
          // disk, leaves its stage to the next run.
          if (left && (!call.sticky || call.at % (2 * kStickyEvery) == 0)) {
            const CommandResult again = run_command(writing.words);
            if (again.exit != 0 || shown() != made || leaves_stage(folder))
              return "leaves what the next run cannot clear: " + described(again);
          }
          take_leftovers(folder);
          clear();
          if (result.exit == 0) {
            ++totals.right;
            if (report.was_written_file) return std::string("a failed sync or close is ignored");
            return std::string(now == made ? "" : "exit 0 without the result");
          }
          if (result.exit != exit_for(call.error) || !complains_once(result.err, call.error))
            return std::string("neither right nor told");
          ++totals.told;
          if (!result.out.empty()) return std::string("a failure with a result on stdout");
          const bool whole = now == made || now == made_without_seal;       // the last steps failed
          const bool seal_alone = now.size() == 1 && now.contains("seal");  // belongs to nothing
          // What is written in place is removed, unless that fails as well.
          const bool stuck = call.sticky && writing.name == "show --npy";
          const bool fine = now.empty() || whole || seal_alone || stuck;
          return std::string(fine ? "" : "half a result is visible");
        });
  }
}

}  // namespace

TEST_CASE("commands that read have each file call fail: right or path and errno") {
  RunTotals totals;
  fail_reading_commands(false, totals);
  conclude("reading commands under failing calls", totals, kPromisedReads);
}

TEST_CASE("commands that write have each file call fail: all or nothing") {
  RunTotals totals;
  fail_writing_commands(false, totals);
  conclude("writing commands under failing calls", totals, kPromisedWrites);
}

TEST_CASE("commands have each file call fail with every errno", "[.soak]") {
  RunTotals reading, writing;
  fail_reading_commands(true, reading);
  conclude("reading commands under failing calls", reading, kPromisedReads * kCallErrors.size());
  fail_writing_commands(true, writing);
  conclude("writing commands under failing calls", writing, kPromisedWrites * kCallErrors.size());
}
