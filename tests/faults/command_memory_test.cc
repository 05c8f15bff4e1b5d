// Whole commands that are refused memory or threads, from their start on: each ends with what it
// would have printed or made, or as for lack of memory (exit 6) with one line on stderr and nothing
// visible. Never a crash.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "tests/faults/command_runs.h"

using namespace tessera;
using namespace tessera::faults;
using namespace tessera::testing;

namespace {

namespace stdfs = std::filesystem;

constexpr std::uint64_t kPromisedOnce = 500;    // in commands that read
constexpr std::uint64_t kPromisedReruns = 200;  // of commands that write
constexpr std::uint64_t kPromisedThreads = 12;

/// What refuse_memory.cc reports.
struct Counts {
  std::uint64_t allocations = 0, refused = 0, right = 0, told = 0, bad = 0, threads = 0;
  std::uint64_t refused_threads = 0;
  std::string bad_runs;
};

CommandResult run_refused(const std::vector<std::string>& words,
                          std::map<std::string, std::string> refusals, const QuickFolder& folder,
                          Counts& counts) {
  CommandOptions options;
  options.timeout_seconds = 300;
  options.environment = std::move(refusals);
  options.environment["LD_PRELOAD"] = TESSERA_REFUSE_MEMORY;
  options.environment["TESSERA_REFUSE_REPORT"] = folder / "report";
  stdfs::remove(folder / "report");
  const CommandResult result = run_command(words, options);
  std::ifstream report(folder / "report");
  counts = {};
  report >> counts.allocations >> counts.refused >> counts.right >> counts.told >> counts.bad >>
      counts.threads >> counts.refused_threads;
  std::getline(report, counts.bad_runs, '\0');
  return result;
}

/// "COMMAND: resource exhausted: ..." and perhaps a hint; progress goes before it.
bool tells_of_exhaustion(const std::string& text) {
  std::istringstream lines(text);
  int complaints = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("{\"schema\":\"tessera.progress") || line.starts_with("hint: ")) continue;
    if (!line.starts_with("ckpt-") || line.find("resource exhausted") == std::string::npos)
      return false;
    ++complaints;
  }
  return complaints == 1;
}

}  // namespace

TEST_CASE("commands that read are refused allocations from their start on") {
  const QuickFolder folder;
  const std::string path = sample("dcp/fsdp2_w2/checkpoint");
  const std::vector<std::vector<std::string>> verbs{
      {"summary", path}, {"ls", path}, {"hash", path}};
  std::uint64_t refused = 0;
  std::string text;
  for (const auto& verb : verbs) {
    std::vector<std::string> words = verb;
    words.insert(words.begin(), built("ckpt-inspect"));
    words.insert(words.end(), {"--threads", "1", "--progress", "none"});
    const CommandResult plain = run_command(words);
    INFO(verb.front() << ": " << described(plain));
    REQUIRE(plain.exit == 0);
    std::ofstream(folder / "expected") << plain.out;
    Counts counts;
    const CommandResult result = run_refused(
        words, {{"TESSERA_REFUSE_EACH", folder / "expected"}, {"TESSERA_REFUSE_STRIDE", "97"}},
        folder, counts);
    INFO(counts.bad_runs);
    CHECK(result.exit == 0);
    CHECK(result.out == plain.out);
    CHECK(counts.bad == 0);
    CHECK(counts.right + counts.told == counts.refused);
    CHECK(counts.refused >= 100);  // the whole start at least
    refused += counts.refused;
    text += fmt::format("{} {} of {} of {}", text.empty() ? "" : ",", counts.refused,
                        counts.allocations, verb.front());
  }
  fmt::print(
      "commands' allocations: {} refused, one in a run each ({} ); 0 crashes, 0 wrong results\n",
      refused, text);
  REQUIRE(refused >= kPromisedOnce);
}

TEST_CASE("commands that write are refused an allocation or all from one on: old or new") {
  const QuickFolder folder;
  std::uint64_t refused_runs = 0, right = 0, told = 0;
  for (const Writing& writing : writings(folder, "2")) {
    Counts counts;
    const CommandResult plain = run_refused(writing.words, {}, folder, counts);
    INFO(described(plain));
    REQUIRE(plain.exit == 0);
    const auto made = tree(writing.output);
    REQUIRE_FALSE(made.empty());
    const std::uint64_t all = counts.allocations;
    for (const std::string how : {"TESSERA_REFUSE_AT", "TESSERA_REFUSE_FROM"}) {
      constexpr std::uint64_t kRuns = 60;
      for (std::uint64_t run = 0; run < kRuns; ++run) {
        stdfs::remove_all(writing.output);
        // A part of the start, then evenly.
        const std::uint64_t at =
            run < 15 ? 1 + run * 5 : 75 + (all - 75) * (run - 15) / (kRuns - 15);
        const CommandResult result =
            run_refused(writing.words, {{how, std::to_string(at)}}, folder, counts);
        INFO(writing.name << ", " << how << " " << at << " of " << all << ": "
                          << described(result));
        const std::string left = take_leftovers(folder);
        if (how == "TESSERA_REFUSE_AT") CHECK(left == "");  // there was memory to remove it
        const auto now = tree(writing.output);
        REQUIRE((result.exit == 0 || result.exit == 6));
        if (result.exit == 0) REQUIRE(now == made);
        if (result.exit == 6) {
          CHECK(tells_of_exhaustion(result.err));
          CHECK(result.out.empty());
          REQUIRE((now.empty() || now == made));
        }
        ++(result.exit == 0 ? right : told);
        refused_runs += counts.refused > 0 || result.exit == 6;
      }
    }
  }
  fmt::print(
      "writing commands under refused memory: {} runs, {} right, {} ended with exit 6; "
      "0 crashes, 0 mixes\n",
      refused_runs, right, told);
  REQUIRE(refused_runs >= kPromisedReruns);
  REQUIRE(told > 0);
}

TEST_CASE("commands that are refused threads do their work without") {
  const QuickFolder folder;
  std::uint64_t refused = 0, runs = 0;
  const auto each = [&](const std::vector<std::string>& words, const auto& check) {
    for (const char* from : {"1", "2", "3"}) {
      Counts counts;
      const CommandResult result =
          run_refused(words, {{"TESSERA_REFUSE_THREADS", from}}, folder, counts);
      INFO(words[1] << ", from thread " << from << " on: " << described(result));
      CHECK(result.exit == 0);
      check(result);
      refused += counts.refused_threads;
      ++runs;
    }
  };
  for (const Writing& writing : writings(folder, "4")) {
    REQUIRE(run_command(writing.words).exit == 0);
    const auto made = tree(writing.output);
    each(writing.words, [&](const CommandResult& result) {
      CHECK(tree(writing.output) == made);
      CHECK(result.err.find("tessera.progress/1") != std::string::npos);  // the last word
    });
  }
  for (const std::vector<std::string>& verb :
       {std::vector<std::string>{"hash"}, {"stat"}, {"verify", "--full"}}) {
    std::vector<std::string> words{built("ckpt-inspect")};
    words.insert(words.end(), verb.begin(), verb.end());
    words.insert(words.end(),
                 {sample("dcp/fsdp2_w2/checkpoint"), "--threads", "4", "--progress", "json"});
    const std::string expected = run_command(words).out;
    each(words, [&](const CommandResult& result) { CHECK(result.out == expected); });
  }
  fmt::print("refused threads: {} in {} runs, every result right\n", refused, runs);
  REQUIRE(refused >= kPromisedThreads);
}

TEST_CASE("an index of 20000 absent shards is verified in 128 MiB of addresses") {
  const QuickFolder folder;
  {
    std::ofstream index(folder / "model.safetensors.index.json");
    index << R"({"weight_map":{)";
    for (int i = 0; i < 20'000; ++i)
      index << (i == 0 ? "" : ",") << fmt::format(R"("t{0}":"m{0}.safetensors")", i);
    index << "}}";
  }
  const CommandResult result =
      run_command({"/bin/sh", "-c", R"(ulimit -v 131072 && exec "$0" "$@")", built("ckpt-inspect"),
                   "verify", "--full", "--threads", "1", "--progress", "none", folder.path()});
  INFO(described(result));
  CHECK(result.exit == 1);
  CHECK(result.out.find("DAMAGED") != std::string::npos);
  CHECK(result.out.find("m0.safetensors") != std::string::npos);
}
