#pragma once
// The only place that starts worker threads for data-parallel work.
#include <cstddef>
#include <functional>

namespace tessera {

/// Calls task(index, worker) for every index in [0, count) on up to `threads` threads, handing out
/// indices in ascending order. Returns when all are done. The first exception (lowest index among
/// those that threw) is rethrown after every worker stopped; no new index starts after a throw.
void parallel_for(std::size_t count, int threads,
                  const std::function<void(std::size_t index, int worker)>& task);

/// CPUs this process may use: affinity mask and cgroup quota (v1 and v2), at least 1.
int available_cpus();

/// Bytes of memory this process may use: the smaller of the cgroup's limit (v1 and v2) and RAM.
std::size_t available_memory_bytes();

}  // namespace tessera
