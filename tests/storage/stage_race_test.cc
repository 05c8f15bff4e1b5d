// Two runs publish to one name at once. One stops before its i-th operation, the other one goes on
// up to its j-th, then each goes to its end: every such order, and all that shows is what one of
// them wrote, or the old output where neither succeeded.
#include <fmt/format.h>
#include <tessera/storage/observed_file_system.h>
#include <tessera/storage/stage.h>

#include <catch2/catch.hpp>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <thread>

#include "tests/storage/stage_fixture.h"
#include "tests/support/sanitized.h"

namespace stage_race_test {

using namespace tessera;
using namespace tessera::test;

namespace {

/// Who may go on: the first run up to its `first`-th operation, the second up to its `second`-th,
/// the first to its end, the second to its end.
class Schedule {
 public:
  Schedule(std::uint64_t first, std::uint64_t second) : stops_{first, second} {}

  /// Before an operation of `run` (0 or 1).
  void step(int run) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return phase_ % 2 == run || phase_ > 3; });
    if (phase_ != run || ++counts_[run] < stops_[run]) return;
    stopped_[run] = true;
    advance();
    changed_.wait(lock, [&] { return phase_ % 2 == run || phase_ > 3; });
  }
  void end(int run) {
    const std::lock_guard lock(mutex_);
    ended_[run] = true;
    if (phase_ % 2 == run) advance();
  }
  /// Whether the run came to its stop before it ended.
  bool stopped(int run) const { return stopped_[run]; }

 private:
  void advance() {
    do ++phase_;
    while (phase_ <= 3 && ended_[phase_ % 2]);
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  int phase_ = 0;
  std::uint64_t stops_[2];
  std::uint64_t counts_[2] = {0, 0};
  bool ended_[2] = {false, false};
  bool stopped_[2] = {false, false};
};

class Scheduled final : public ObservedFileSystem {
 public:
  Scheduled(FileSystem& inner, Schedule& schedule, int run)
      : ObservedFileSystem(inner), schedule_(schedule), run_(run) {}

 protected:
  void before(const IoEvent&) const override { schedule_.step(run_); }

 private:
  Schedule& schedule_;
  int run_;
};

struct Scenario {
  bool has_exchange;
  bool single_file;
  bool old_there;  // and both runs may replace it
  bool same_request;
};

Tree written_by(int run, bool single_file) {
  const std::string text = run == 0 ? "first one's bytes" : "second one's byte";  // of one size
  return single_file ? Tree{{"", text}} : Tree{{"a.bin", text}, {"sub/", ""}, {"sub/b.bin", text}};
}
std::string seal_of(int run) { return run == 0 ? "seal one" : "seal two"; }

Tree result_of(int run, bool single_file) {
  Tree tree = written_by(run, single_file);
  if (single_file) return {{"out", tree.at("")}, {"out.tessera.json", seal_of(run)}};
  tree["tessera.manifest.json"] = seal_of(run);
  return under("out", tree);
}

Tree old_state(const Scenario& scenario) {
  if (!scenario.old_there) return {};
  if (scenario.single_file) return {{"out", "old content bytes"}, {"out.tessera.json", "old seal"}};
  return under("out", sealed(kOld));
}

/// A file may be without its seal, never beside that of another.
bool is_state(const Tree& found, Tree expected, bool single_file) {
  if (found == expected) return true;
  if (!single_file) return false;
  expected.erase("out.tessera.json");
  return found == expected;
}

struct Totals {
  std::uint64_t orders = 0, both = 0, one = 0, none = 0, unsealed = 0;
};

/// False when neither run came to its stop.
bool race(const Scenario& scenario, std::uint64_t first, std::uint64_t second, Totals& totals,
          bool& second_stopped) {
  MemoryFileSystem memory(MemoryFileSystemOptions{.has_exchange = scenario.has_exchange});
  memory.make_directories("/w");
  for (const auto& [path, content] : old_state(scenario))
    if (!path.ends_with('/')) memory.write_file("/w/" + path, as_bytes(content));
  Schedule schedule(first, second);
  std::string errors[2];
  const auto run = [&](int which) {
    const Scheduled fs(memory, schedule, which);
    try {
      const auto stage = Stage::open(const_cast<Scheduled&>(fs), "/w/out",
                                     which == 1 && !scenario.same_request ? kOtherHash : kHash,
                                     {.force = scenario.old_there,
                                      .single_file = scenario.single_file,
                                      .resumable = true,
                                      .wait_ms = 0});
      fill(*stage, written_by(which, scenario.single_file));
      stage->publish({}, [&] {
        const std::string text = seal_of(which);
        return Bytes(as_bytes(text).begin(), as_bytes(text).end());
      });
    } catch (const Error& error) {
      errors[which] = error.what();
    }
    schedule.end(which);
  };
  std::thread other([&] { run(1); });
  run(0);
  other.join();
  second_stopped = schedule.stopped(1);
  INFO("exchange " << scenario.has_exchange << ", file " << scenario.single_file << ", old "
                   << scenario.old_there << ", same request " << scenario.same_request
                   << "; stops before operations " << first << " and " << second
                   << "\nfirst: " << errors[0] << "\nsecond: " << errors[1]);
  // The next run, whatever it asks for, cleans up.
  Stage::open(memory, "/w/out", "abcdef", {.force = true, .single_file = scenario.single_file})
      ->discard();
  const Tree found = tree_of(memory, "/w");
  const bool done[2] = {errors[0].empty(), errors[1].empty()};
  bool fine = false;
  for (const int which : {0, 1})
    fine = fine || (is_state(found, result_of(which, scenario.single_file), scenario.single_file) &&
                    (done[which] || !done[1 - which]));
  if (!done[0] && !done[1])
    fine = fine || is_state(found, old_state(scenario), scenario.single_file);
  if (!fine) {
    std::string text;
    for (const auto& [path, content] : found) text += path + " = " + content + "\n";
    FAIL(text);
  }
  if (!scenario.old_there) REQUIRE_FALSE((done[0] && done[1]));
  ++totals.orders;
  totals.both += done[0] && done[1];
  totals.one += done[0] != done[1];
  totals.none += !done[0] && !done[1];
  totals.unsealed += scenario.single_file && !found.contains("out.tessera.json");
  return schedule.stopped(0);
}

}  // namespace

TEST_CASE("two runs that publish to one name in any order leave what one of them wrote", "[wide]") {
  constexpr std::uint64_t kEvery = testing::kSanitized ? 5 : 1;
  Totals totals;
  for (const bool has_exchange : {true, false})
    for (const bool single_file : {false, true})
      for (const bool old_there : {false, true})
        for (const bool same_request : {false, true}) {
          const Scenario scenario{has_exchange, single_file, old_there, same_request};
          bool first_stopped = true;
          for (std::uint64_t first = 1; first_stopped; first += kEvery) {
            bool second_stopped = true;
            for (std::uint64_t second = 1; second_stopped; ++second)
              first_stopped = race(scenario, first, second, totals, second_stopped);
          }
        }
  fmt::print(
      "stage races: {} orders of two runs to one name; both succeeded in {}, one in {}, neither in "
      "{}; {} files without a seal; 0 mixes\n",
      totals.orders, totals.both, totals.one, totals.none, totals.unsealed);
  REQUIRE(totals.orders > (testing::kSanitized ? 2'000 : 10'000));
  REQUIRE(totals.both > 0);
}

}  // namespace stage_race_test
