// Ranks as real processes; one is killed with SIGKILL before or after it meets the others, at every
// meeting of a save and of a load. Every survivor reports within 5 s, and checkpoint and memory are
// the old ones or the new ones, whole.
#include <signal.h>
#include <unistd.h>

#include "tests/support/killed_job.h"
#include "tests/support/process_ranks.h"

namespace live_meetings_test {

using namespace tessera;
using namespace tessera::test;
using Catch::Matchers::Contains;

namespace {

/// Forwards to a group, and kills this process at a moment: 1 is before the first meeting, 2 after
/// it, 3 before the second.
class DeadlyRank final : public RankGroup {
 public:
  DeadlyRank(RankGroup& inner, int moment) : inner_(inner), left_(moment) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> bytes) override {
    pass();
    auto all = inner_.all_gather(bytes);
    pass();
    return all;
  }

 private:
  void pass() {
    if (left_ > 0 && --left_ == 0) ::kill(::getpid(), SIGKILL);
  }
  RankGroup& inner_;
  int left_;
};

struct Kills {
  int reported = 0;   // survivors told of the death
  int unnoticed = 0;  // it came after the last meeting
};

/// Runs `job` with rank `victim` killed at every moment in turn. `judge` is told whether survivors
/// were told of it, after each.
Kills kill_at_every_moment(int world, int victim, const std::function<void(RankGroup&)>& job,
                           const std::function<void(bool told)>& judge) {
  Kills kills;
  for (int moment = 1;; ++moment) {
    INFO("rank " << victim << " of " << world << ", moment " << moment);
    REQUIRE(moment < 200);
    const auto ends = in_processes(world, [&](RankGroup& ranks) {
      DeadlyRank deadly(ranks, ranks.rank() == victim ? moment : 0);
      job(deadly);
    });
    const bool died = ends[static_cast<std::size_t>(victim)].killed;
    const bool told = died && !ends[victim == 0 ? 1 : 0].thrown.empty();
    for (int r = 0; r < world; ++r) {
      const RankEnd& end = ends[static_cast<std::size_t>(r)];
      if (r == victim && died) continue;
      INFO("rank " << r);
      CHECK(end.seconds < 5);
      if (told)
        CHECK_THAT(end.thrown, Contains("gone"));
      else
        CHECK(end.thrown == "");
    }
    judge(told);
    if (!died) return kills;
    ++(told ? kills.reported : kills.unnoticed);
  }
}

void kill_in_saves(int world, int victim) {
  const KilledFolder folder;
  const std::string path = folder / "a";
  const auto save_all = [&](float value) {
    const auto ends = in_processes(world, [&](RankGroup& ranks) {
      save(path, KilledRows(ranks.rank(), world, value).state(), ranks, replacing(nullptr));
    });
    for (const RankEnd& end : ends) REQUIRE(end.thrown == "");
  };
  save_all(1);
  const auto job = [&](RankGroup& ranks) {
    save(path, KilledRows(ranks.rank(), world, 2).state(), ranks, replacing(nullptr));
  };
  int old = 0;
  const Kills kills = kill_at_every_moment(world, victim, job, [&](bool told) {
    const float now = content_of(path, world);
    CHECK((now == 2 || (told && now == 1)));
    old += now == 1;
    if (now == 2) save_all(1);
  });
  CHECK(kills.reported >= 12);
  CHECK(old >= 8);              // before it was published
  CHECK(kills.unnoticed == 1);  // after the last meeting
  save_all(3);                  // clears away what the killed ones left
  CHECK(content_of(path, world) == 3);
  int entries = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder / ""))
    ++entries;
  CHECK(entries == 1);
}

void kill_in_loads(int world, int victim, LoadSafety safety) {
  const KilledFolder folder;
  const std::string path = folder / "a";
  const auto first = in_processes(world, [&](RankGroup& ranks) {
    save(path, KilledRows(ranks.rank(), world, 1).state(), ranks, replacing(nullptr));
  });
  for (const RankEnd& end : first) REQUIRE(end.thrown == "");
  const auto job = [&](RankGroup& ranks) {
    KilledRows rows(ranks.rank(), world, 0);
    LoadPolicy policy;
    policy.safety = safety;
    try {
      load(path, rows.state(), ranks, policy);
    } catch (const Error& error) {
      const bool told = std::string(error.what()).find("partly filled") != std::string::npos;
      if (told ? safety == LoadSafety::kAside : !rows.is(0) && !rows.is(1))
        throw std::runtime_error("half loaded");
      throw;
    }
    if (!rows.is(1)) throw std::runtime_error("other bytes");
  };
  const Kills kills =
      kill_at_every_moment(world, victim, job, [&](bool) { CHECK(content_of(path, world) == 1); });
  CHECK(kills.reported >= 8);
  CHECK(kills.unnoticed == 1);
}

}  // namespace

TEST_CASE("a rank killed at any meeting of a save: survivors report, old or new is whole",
          "[kills]") {
  const int victim = GENERATE(0, 2);
  kill_in_saves(3, victim);
}

TEST_CASE("a rank killed at any meeting of a load: survivors report, no memory is half loaded",
          "[kills]") {
  const int victim = GENERATE(0, 1);
  for (const LoadSafety safety : {LoadSafety::kAside, LoadSafety::kReadTwice, LoadSafety::kInPlace})
    kill_in_loads(3, victim, safety);
}

TEST_CASE("every rank of up to six killed at every meeting of saves and loads", "[.soak]") {
  const int world = GENERATE(2, 3, 4, 5, 6);
  for (int victim = 0; victim < world; ++victim) {
    kill_in_saves(world, victim);
    for (const LoadSafety safety :
         {LoadSafety::kAside, LoadSafety::kReadTwice, LoadSafety::kInPlace})
      kill_in_loads(world, victim, safety);
  }
}

}  // namespace live_meetings_test
