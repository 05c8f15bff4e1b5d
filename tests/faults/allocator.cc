#include "tests/faults/allocator.h"

#include <errno.h>
#include <malloc.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>

extern "C" {
void* __libc_malloc(std::size_t size);
void* __libc_calloc(std::size_t count, std::size_t size);
void* __libc_realloc(void* old, std::size_t size);
void* __libc_memalign(std::size_t alignment, std::size_t size);
}

namespace tessera::faults {
namespace {

// Plain data: an allocator can use nothing that allocates.
constinit bool watching = false;
constinit bool inside = false;
constinit bool refused_child = false;
constinit std::uint64_t let_pass = 0;
constinit std::uint64_t most = 0;
constinit AllocationReport report{};

constexpr rlim_t kMostSeconds = 20;  // of processor time of a child: a loop is killed

/// True: this process is the child that goes without this allocation.
bool refused() {
  if (!watching || inside || refused_child) return false;
  ++report.allocations;
  if (report.allocations <= let_pass || report.refused >= most) return false;
  inside = true;
  const pid_t pid = ::fork();
  if (pid == 0) {
    inside = false;
    refused_child = true;
    watching = false;
    const rlimit limit{kMostSeconds, kMostSeconds};
    ::setrlimit(RLIMIT_CPU, &limit);
    errno = ENOMEM;
    return true;
  }
  int status = -1;
  if (pid > 0) ::waitpid(pid, &status, 0);
  ++report.refused;
  const bool ended = WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 6);
  report.as_hoped += ended;
  if (!ended && report.first_bad_allocation == 0) {
    report.first_bad_status = status;
    report.first_bad_allocation = report.allocations;
  }
  inside = false;
  return false;
}

}  // namespace

void watch_allocations(std::uint64_t first, std::uint64_t at_most) {
  report = {};
  let_pass = first;
  most = at_most;
  watching = true;
}

AllocationReport stop_watching_allocations() {
  watching = false;
  return report;
}

bool in_refused_child() { return refused_child; }

}  // namespace tessera::faults

extern "C" {

void* malloc(std::size_t size) {
  return tessera::faults::refused() ? nullptr : __libc_malloc(size);
}
void* calloc(std::size_t count, std::size_t size) {
  return tessera::faults::refused() ? nullptr : __libc_calloc(count, size);
}
void* realloc(void* old, std::size_t size) {
  return tessera::faults::refused() ? nullptr : __libc_realloc(old, size);
}
void* memalign(std::size_t alignment, std::size_t size) {
  return tessera::faults::refused() ? nullptr : __libc_memalign(alignment, size);
}
void* aligned_alloc(std::size_t alignment, std::size_t size) {
  return tessera::faults::refused() ? nullptr : __libc_memalign(alignment, size);
}
int posix_memalign(void** to, std::size_t alignment, std::size_t size) {
  if (tessera::faults::refused()) return ENOMEM;
  *to = __libc_memalign(alignment, size);
  return *to == nullptr ? ENOMEM : 0;
}
/// Of mappings those alone that are memory and no file. (The C library's own do not come by here.)
void* mmap(void* address, std::size_t length, int protection, int flags, int fd, off_t offset) {
  if ((flags & MAP_ANONYMOUS) != 0 && tessera::faults::refused()) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  return reinterpret_cast<void*>(
      ::syscall(SYS_mmap, address, length, protection, flags, fd, offset));
}

}  // extern "C"
