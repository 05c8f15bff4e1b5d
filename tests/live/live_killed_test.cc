// Ranks as real processes; one is killed with SIGKILL at every step of its disk, while it saves and
// while it loads. Every survivor reports within 5 s, and the checkpoint before is whole.
#include <signal.h>
#include <tessera/storage/observed_file_system.h>
#include <unistd.h>

#include "tests/support/killed_job.h"
#include "tests/support/process_ranks.h"

namespace live_killed_test {

using namespace tessera;
using namespace tessera::test;
using Catch::Matchers::Contains;

namespace {

constexpr int kProcesses = 3;

/// Kills this process before the n-th operation.
class DeadlyFileSystem final : public ObservedFileSystem {
 public:
  DeadlyFileSystem(FileSystem& inner, int at) : ObservedFileSystem(inner), left_(at) {}

 protected:
  void before(const IoEvent&) const override {
    if (left_ > 0 && --left_ == 0) ::kill(::getpid(), SIGKILL);
  }

 private:
  mutable std::atomic<int> left_;
};

/// One rank's part.
struct Rows : KilledRows {
  Rows(int rank, float value) : KilledRows(rank, kProcesses, value) {}
};

float content(const std::string& path) { return content_of(path, kProcesses); }

/// Rank `victim` dies before its n-th operation; false when it had fewer.
bool killed(int victim, int at, const std::function<void(RankGroup&, FileSystem&)>& body) {
  const auto ends = in_processes(kProcesses, [&](RankGroup& ranks) {
    const auto disk = make_posix_file_system();
    DeadlyFileSystem deadly(*disk, ranks.rank() == victim ? at : 0);
    body(ranks, deadly);
  });
  if (!ends[static_cast<std::size_t>(victim)].killed) {
    for (const RankEnd& end : ends) CHECK(end.thrown == "");
    return false;
  }
  for (int r = 0; r < kProcesses; ++r) {
    if (r == victim) continue;
    const RankEnd& end = ends[static_cast<std::size_t>(r)];
    CHECK_THAT(end.thrown, Contains("gone"));
    CHECK(end.seconds < 5);
  }
  return true;
}

}  // namespace

TEST_CASE("a rank killed at any step of a save: survivors report, old or new is whole", "[kills]") {
  const KilledFolder folder;
  const std::string path = folder / "a";
  for (const int victim : {0, 2}) {
    int kills = 0;
    for (int at = 1;; ++at) {
      INFO("rank " << victim << ", operation " << at);
      REQUIRE(at < 500);
      const auto first = in_processes(kProcesses, [&](RankGroup& ranks) {
        save(path, Rows(ranks.rank(), 1).state(), ranks, replacing(nullptr));
      });
      for (const RankEnd& end : first) REQUIRE(end.thrown == "");
      const bool died = killed(victim, at, [&](RankGroup& ranks, FileSystem& fs) {
        save(path, Rows(ranks.rank(), 2).state(), ranks, replacing(&fs));
      });
      const float now = content(path);
      if (!died) {
        CHECK(now == 2);
        break;
      }
      ++kills;
      CHECK((now == 1 || now == 2));
    }
    CHECK(kills >= 6);
  }
  // What the killed ones left is cleared away by the next save.
  const auto last = in_processes(kProcesses, [&](RankGroup& ranks) {
    save(path, Rows(ranks.rank(), 3).state(), ranks, replacing(nullptr));
  });
  for (const RankEnd& end : last) CHECK(end.thrown == "");
  CHECK(content(path) == 3);
  int entries = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder / ""))
    ++entries;
  CHECK(entries == 1);
}

TEST_CASE("a rank killed at any step of a load: survivors report, the checkpoint stays",
          "[kills]") {
  const LoadSafety safety =
      GENERATE(LoadSafety::kAside, LoadSafety::kReadTwice, LoadSafety::kInPlace);
  const KilledFolder folder;
  const std::string path = folder / "a";
  const auto first = in_processes(kProcesses, [&](RankGroup& ranks) {
    save(path, Rows(ranks.rank(), 1).state(), ranks, replacing(nullptr));
  });
  for (const RankEnd& end : first) REQUIRE(end.thrown == "");
  for (const int victim : {0, 1}) {
    int kills = 0;
    for (int at = 1;; ++at) {
      INFO("safety " << static_cast<int>(safety) << ", rank " << victim << ", operation " << at);
      REQUIRE(at < 500);
      const bool died = killed(victim, at, [&](RankGroup& ranks, FileSystem& fs) {
        Rows rows(ranks.rank(), 0);
        LoadPolicy policy;
        policy.file_system = &fs;
        policy.safety = safety;
        try {
          load(path, rows.state(), ranks, policy);
        } catch (const Error& error) {
          const bool told = std::string(error.what()).find("partly filled") != std::string::npos;
          if (told ? safety == LoadSafety::kAside : !rows.is(0))
            throw std::runtime_error("half loaded");
          throw;
        }
        if (!rows.is(1)) throw std::runtime_error("other bytes");
      });
      if (!died) break;
      ++kills;
    }
    CHECK(kills >= 6);
    CHECK(content(path) == 1);
  }
}

TEST_CASE("rank 0 killed at any step of a save that moves the pointer: it names a whole one",
          "[kills]") {
  const KilledFolder folder;
  const std::string run = folder / "run";
  const auto save_step = [&](int step, RankGroup& ranks, FileSystem* fs) {
    SaveOptions options = replacing(fs);
    options.update_latest = true;
    options.keep_last = 1;
    save(run + "/step_" + std::to_string(step),
         Rows(ranks.rank(), static_cast<float>(step)).state(), ranks, options);
  };
  int kills = 0, old = 0;
  for (int at = 1;; ++at) {
    INFO("operation " << at);
    REQUIRE(at < 500);
    std::filesystem::remove_all(run);
    const auto first =
        in_processes(kProcesses, [&](RankGroup& ranks) { save_step(1, ranks, nullptr); });
    for (const RankEnd& end : first) REQUIRE(end.thrown == "");
    const bool died =
        killed(0, at, [&](RankGroup& ranks, FileSystem& fs) { save_step(2, ranks, &fs); });
    const float named = content(run);  // follows `latest`
    if (!died) {
      CHECK(named == 2);
      CHECK_FALSE(std::filesystem::exists(run + "/step_1"));
      break;
    }
    ++kills;
    old += named == 1;
    CHECK((named == 1 || named == 2));
  }
  CHECK(old >= 10);         // before the pointer moved
  CHECK(kills - old >= 5);  // while the old one was removed
}

}  // namespace live_killed_test
