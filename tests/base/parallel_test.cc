#include <tessera/base/parallel.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

namespace parallel_test {

using namespace tessera;

TEST_CASE("every index runs once, whatever the thread count") {
  for (const int threads : {-1, 0, 1, 2, 7, 64}) {
    for (const std::size_t count : {0, 1, 3, 1000}) {
      INFO(threads << " threads, " << count << " indices");
      std::vector<std::atomic<int>> runs(count);
      std::atomic<bool> worker_in_range = true;
      parallel_for(count, threads, [&](std::size_t index, int worker) {
        ++runs[index];
        if (worker < 0 || worker >= std::max(threads, 1)) worker_in_range = false;
      });
      CHECK(worker_in_range);
      for (const auto& n : runs) CHECK(n == 1);
    }
  }
}

TEST_CASE("one worker never runs two tasks at once") {
  std::vector<std::atomic<int>> inside(4);
  std::atomic<bool> shared = false;
  parallel_for(400, 4, [&](std::size_t, int worker) {
    if (inside[static_cast<std::size_t>(worker)].fetch_add(1) != 0) shared = true;
    std::this_thread::yield();
    inside[static_cast<std::size_t>(worker)].fetch_sub(1);
  });
  CHECK_FALSE(shared);
}

TEST_CASE("the exception of the lowest failing index is rethrown, and nothing starts after it") {
  for (const int threads : {1, 4}) {
    INFO(threads << " threads");
    std::atomic<int> started = 0;
    try {
      parallel_for(100000, threads, [&](std::size_t index, int) {
        ++started;
        if (index >= 10) {
          // Later indices fail first.
          if (index == 10) std::this_thread::sleep_for(std::chrono::milliseconds(20));
          throw std::runtime_error(std::to_string(index));
        }
      });
      FAIL("no exception");
    } catch (const std::runtime_error& error) {
      CHECK(std::string(error.what()) == "10");
    }
    CHECK(started <= 10 + 2 * threads);
  }
}

TEST_CASE("this process has at least one CPU and some memory") {
  CHECK(available_cpus() >= 1);
  CHECK(available_cpus() <= static_cast<int>(std::thread::hardware_concurrency()));
  CHECK(available_memory_bytes() > (16u << 20));
}

}  // namespace parallel_test
