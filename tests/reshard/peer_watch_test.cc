// While every rank does its own part, each of them sees how far all are together, and a failure or
// a cancel of one stops the others.
#include "lib/reshard/peer_watch.h"

#include <tessera/base/rank_group.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <thread>

namespace peer_watch_test {

using namespace tessera;

namespace {

constexpr int kWatching = 3;

/// Far more than any machine needs: a watch that tells nothing fails, a slow one does not.
bool comes_true(const std::function<bool()>& what) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  while (!what()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

/// Runs `work(rank, group)` on threads; how many of them were false.
int watching(const std::function<bool(int, RankGroup&)>& work) {
  std::atomic<int> mistakes{0};
  std::vector<std::thread> threads;
  auto ranks = thread_ranks(kWatching);
  for (int r = 0; r < kWatching; ++r) {
    threads.emplace_back([&, r, group = std::move(ranks[static_cast<std::size_t>(r)])] {
      try {
        if (!work(r, *group)) ++mistakes;
      } catch (...) {
        ++mistakes;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return mistakes;
}

}  // namespace

TEST_CASE("every rank sees the progress of all while they work") {
  std::atomic<int> seen{0};
  const int mistakes = watching([&](int r, RankGroup& group) {
    Progress own, merged;
    merged.done_bytes = 7;  // of an earlier part of the job: the sum goes on top
    PeerWatch watch(group, own, r == 1 ? nullptr : &merged, nullptr);
    own.done_bytes = r == 0 ? 1 : r == 1 ? 20 : 300;
    bool good = r == 1 || comes_true([&] { return merged.done_bytes == 7 + 321; });
    ++seen;  // nobody is done before all have seen that
    good = comes_true([&] { return seen >= kWatching; }) && good;
    own.done_bytes += 1000;
    good = (r == 1 || comes_true([&] { return merged.done_bytes == 7 + 3321; })) && good;
    ++seen;
    good = comes_true([&] { return seen >= 2 * kWatching; }) && good;
    const bool peer_failed = watch.finish(true);
    return good && !peer_failed && !watch.stop().cancelled();
  });
  CHECK(mistakes == 0);
}

TEST_CASE("one rank's failure stops the others in the middle of their work") {
  for (int failing = 0; failing < kWatching; ++failing) {
    const int mistakes = watching([&](int r, RankGroup& group) {
      Progress own;
      PeerWatch watch(group, own, nullptr, nullptr);
      if (r == failing) return !watch.finish(false);
      const bool stopped = comes_true([&] { return watch.stop().cancelled(); });
      return watch.finish(false) && stopped && !watch.cancelled_by_user();
    });
    CHECK(mistakes == 0);
  }
}

TEST_CASE("a cancel on one rank reaches its own work and then the others") {
  CancelToken user;
  user.cancel();
  const int mistakes = watching([&](int r, RankGroup& group) {
    Progress own;
    PeerWatch watch(group, own, nullptr, r == 2 ? &user : nullptr);
    const bool stopped = comes_true([&] { return watch.stop().cancelled(); });
    watch.finish(false);
    return stopped && watch.cancelled_by_user() == (r == 2);
  });
  CHECK(mistakes == 0);
}

}  // namespace peer_watch_test
