#include <sched.h>
#include <tessera/base/parallel.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <exception>
#include <limits>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "lib/base/cgroup.h"

namespace tessera {
namespace {

/// What the workers of one parallel_for share.
struct Loop {
  Loop(std::size_t n, const std::function<void(std::size_t, int)>& f) : count(n), task(f) {}

  std::size_t count;
  const std::function<void(std::size_t, int)>& task;
  std::atomic<std::size_t> next{0};
  std::atomic<bool> stop{false};
  std::mutex mutex;
  std::size_t failed_index = std::numeric_limits<std::size_t>::max();
  std::exception_ptr failure;

  void run(int worker) {
    while (!stop.load(std::memory_order_relaxed)) {
      const std::size_t index = next.fetch_add(1, std::memory_order_relaxed);
      if (index >= count) return;
      try {
        task(index, worker);
      } catch (...) {
        const std::lock_guard lock(mutex);
        stop.store(true, std::memory_order_relaxed);
        if (index < failed_index) {
          failed_index = index;
          failure = std::current_exception();
        }
      }
    }
  }
};

int affinity_cpus() {
  // The kernel refuses a mask shorter than its own; grow until it fits.
  for (std::size_t cpus = 1024; cpus <= (1u << 20); cpus *= 2) {
    cpu_set_t* set = CPU_ALLOC(cpus);
    if (set == nullptr) return 1;
    const std::size_t bytes = CPU_ALLOC_SIZE(cpus);
    const int error = sched_getaffinity(0, bytes, set);
    const int found = error == 0 ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (found > 0) return found;
  }
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace

void parallel_for(std::size_t count, int threads,
                  const std::function<void(std::size_t index, int worker)>& task) {
  Loop loop(count, task);
  const auto workers = std::min(count, static_cast<std::size_t>(std::max(threads, 1)));
  {
    std::vector<std::jthread> others;
    others.reserve(workers);
    // Fewer threads than asked for is slower, not wrong.
    try {
      for (std::size_t worker = 1; worker < workers; ++worker)
        others.emplace_back([&loop, worker] { loop.run(static_cast<int>(worker)); });
    } catch (const std::system_error&) {
    }
    loop.run(0);
  }
  if (loop.failure) std::rethrow_exception(loop.failure);
}

int available_cpus() {
  const int affinity = affinity_cpus();
  const auto quota = read_cgroup_limits("/").cpus;
  if (!quota) return affinity;
  return std::clamp(static_cast<int>(std::ceil(std::min(*quota, 1e6))), 1, affinity);
}

std::size_t available_memory_bytes() {
  const auto pages = static_cast<std::uint64_t>(std::max(1L, sysconf(_SC_PHYS_PAGES)));
  const auto page_bytes = static_cast<std::uint64_t>(std::max(1L, sysconf(_SC_PAGESIZE)));
  const std::uint64_t installed_bytes = pages * page_bytes;
  return std::min(installed_bytes, read_cgroup_limits("/").memory_bytes.value_or(installed_bytes));
}

}  // namespace tessera
