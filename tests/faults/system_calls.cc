#include "tests/faults/system_calls.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

namespace tessera::faults {
namespace {

template <class F>
F* next(const char* name) {
  return reinterpret_cast<F*>(::dlsym(RTLD_NEXT, name));
}

/// What the calls share. Constructed at the first call, never destroyed: calls come until the end.
struct Watch {
  std::recursive_mutex mutex;
  bool armed = false;
  bool watching = false;
  bool inside = false;  // this code's own calls
  CallFault fault;
  CallReport report;
  int interrupted = 0;  // times in a row, of a sticky EINTR
  std::set<std::pair<dev_t, ino_t>> failed_syncs;
  std::map<std::string, std::uint64_t> by_function;
  std::set<std::string> opened;
};
Watch& watch() {
  static Watch* const one = new Watch;
  return *one;
}

struct stat status_of(int fd) {
  struct stat status {};
  ::syscall(SYS_fstat, fd, &status);
  return status;
}

bool due(const CallFault& fault, std::uint64_t call) {
  return fault.at != 0 && (call == fault.at || (fault.sticky && call > fault.at));
}

/// True: the call must fail, errno is set.
bool fails(const char* function, int fd = -1) {
  Watch& w = watch();
  const std::lock_guard lock(w.mutex);
  if (!w.armed || w.inside || w.fault.shortened != Shortened::kNot) return false;
  if (!w.fault.function.empty() && w.fault.function != function) return false;
  const bool is_sync = std::strstr(function, "sync") != nullptr;
  if (is_sync) {
    const struct stat status = status_of(fd);
    if (w.failed_syncs.contains({status.st_dev, status.st_ino})) ++w.report.sync_retries;
  }
  ++w.report.calls;
  if (!due(w.fault, w.report.calls)) return false;
  if (w.fault.kills) ::raise(SIGKILL);
  if (w.fault.error == EINTR && w.fault.sticky && !w.fault.endless && ++w.interrupted % 3 == 0)
    return false;
  ++w.by_function[function];
  if (w.report.injected++ == 0) {
    w.report.function = function;
    const bool writes = fd >= 0 && (::syscall(SYS_fcntl, fd, F_GETFL) & O_ACCMODE) == O_WRONLY;
    w.report.was_written_file = writes && (is_sync || std::strcmp(function, "close") == 0);
  }
  if (is_sync) {
    const struct stat status = status_of(fd);
    w.failed_syncs.insert({status.st_dev, status.st_ino});
  }
  errno = w.fault.error;
  return true;
}

/// How many of `count` bytes a transfer moves.
std::size_t shortened(const char* function, std::size_t count) {
  Watch& w = watch();
  const std::lock_guard lock(w.mutex);
  if (!w.armed || w.inside || w.fault.shortened == Shortened::kNot) return count;
  if (!due(w.fault, ++w.report.calls) || count < 2) return count;
  ++w.report.injected;
  ++w.by_function[std::string("short ") + function];
  switch (w.fault.shortened) {
    case Shortened::kOneByte:
      return 1;
    case Shortened::kHalf:
      return count / 2;
    default:
      return count - 1;
  }
}

int noted(int fd) {
  Watch& w = watch();
  if (fd < 0 || !w.watching) return fd;
  const int kept = errno;
  std::array<char, 4096> path;
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t length = ::readlink(link.c_str(), path.data(), path.size());
  const std::lock_guard lock(w.mutex);
  if (length > 0) w.opened.emplace(path.data(), static_cast<std::size_t>(length));
  errno = kept;
  return fd;
}

}  // namespace

void arm(const CallFault& fault) {
  Watch& w = watch();
  const std::lock_guard lock(w.mutex);
  w.fault = fault;
  w.report = {};
  w.interrupted = 0;
  w.failed_syncs.clear();
  w.armed = true;
}

CallReport disarm() {
  Watch& w = watch();
  const std::lock_guard lock(w.mutex);
  w.armed = false;
  return w.report;
}

std::vector<std::pair<std::string, std::uint64_t>> injected_by_function() {
  Watch& w = watch();
  return {w.by_function.begin(), w.by_function.end()};
}

void watch_opens() {
  Watch& w = watch();
  const std::lock_guard lock(w.mutex);
  w.opened.clear();
  w.watching = true;
}

std::set<std::string> opened_paths() {
  Watch& w = watch();
  const std::lock_guard lock(w.mutex);
  w.watching = false;
  return w.opened;
}

int count_descriptors() {
  int count = 0;
  for (int fd = 0; fd < 64; ++fd) count += ::syscall(SYS_fcntl, fd, F_GETFD) >= 0;
  return count;
}

}  // namespace tessera::faults

using tessera::faults::fails;
using tessera::faults::next;
using tessera::faults::noted;
using tessera::faults::shortened;

extern "C" {

// Forwards `name` with its arguments unless a fault is due. `fd` for calls on a descriptor.
#define TESSERA_FORWARD(type, name, parameters, arguments, failure, fd) \
  type name parameters {                                                \
    static auto* const real = next<type parameters>(#name);             \
    if (fails(#name, fd)) return failure;                               \
    return real arguments;                                              \
  }

int open(const char* path, int flags, ...) {
  static auto* const real = next<int(const char*, int, ...)>("open");
  va_list list;
  va_start(list, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(list, mode_t) : 0;
  va_end(list);
  return fails("open") ? -1 : noted(real(path, flags, mode));
}

int openat(int fd, const char* path, int flags, ...) {
  static auto* const real = next<int(int, const char*, int, ...)>("openat");
  va_list list;
  va_start(list, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(list, mode_t) : 0;
  va_end(list);
  return fails("openat") ? -1 : noted(real(fd, path, flags, mode));
}

long syscall(long number, ...) noexcept {
  static auto* const real = next<long(long, ...)>("syscall");
  va_list list;
  va_start(list, number);
  std::array<long, 6> a;
  for (long& argument : a) argument = va_arg(list, long);
  va_end(list);
  if (number == SYS_openat2 && fails("openat2")) return -1;
  const long result = real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  return number == SYS_openat2 ? noted(static_cast<int>(result)) : result;
}

int fcntl(int fd, int command, ...) {
  static auto* const real = next<int(int, int, ...)>("fcntl");
  va_list list;
  va_start(list, command);
  void* argument = va_arg(list, void*);
  va_end(list);
  return fails("fcntl", fd) ? -1 : real(fd, command, argument);
}

ssize_t read(int fd, void* out, size_t count) {
  static auto* const real = next<ssize_t(int, void*, size_t)>("read");
  if (fails("read", fd)) return -1;
  return real(fd, out, shortened("read", count));
}

ssize_t pread(int fd, void* out, size_t count, off_t offset) {
  static auto* const real = next<ssize_t(int, void*, size_t, off_t)>("pread");
  if (fails("pread", fd)) return -1;
  return real(fd, out, shortened("pread", count), offset);
}

/// Stderr is left out, as failures are told there.
ssize_t write(int fd, const void* data, size_t count) {
  static auto* const real = next<ssize_t(int, const void*, size_t)>("write");
  if (fd != STDERR_FILENO && fails("write", fd)) return -1;
  return real(fd, data, fd == STDERR_FILENO ? count : shortened("write", count));
}

ssize_t pwrite(int fd, const void* data, size_t count, off_t offset) {
  static auto* const real = next<ssize_t(int, const void*, size_t, off_t)>("pwrite");
  if (fails("pwrite", fd)) return -1;
  return real(fd, data, shortened("pwrite", count), offset);
}

int close(int fd) {
  static auto* const real = next<int(int)>("close");
  const bool failing = fails("close", fd);
  const int error = errno;
  const int result = real(fd);  // a close that reports an error has closed all the same
  if (failing) errno = error;
  return failing ? -1 : result;
}

TESSERA_FORWARD(int, fsync, (int fd), (fd), -1, fd)
TESSERA_FORWARD(int, fdatasync, (int fd), (fd), -1, fd)
TESSERA_FORWARD(int, ftruncate, (int fd, off_t size) noexcept, (fd, size), -1, fd)
TESSERA_FORWARD(int, fallocate, (int fd, int mode, off_t at, off_t size), (fd, mode, at, size), -1,
                fd)
TESSERA_FORWARD(int, stat, (const char* path, struct stat* to) noexcept, (path, to), -1, -1)
TESSERA_FORWARD(int, lstat, (const char* path, struct stat* to) noexcept, (path, to), -1, -1)
TESSERA_FORWARD(int, fstat, (int fd, struct stat* to) noexcept, (fd, to), -1, fd)
TESSERA_FORWARD(int, fstatat, (int fd, const char* path, struct stat* to, int flags) noexcept,
                (fd, path, to, flags), -1, fd)
TESSERA_FORWARD(int, statvfs, (const char* path, struct statvfs* to) noexcept, (path, to), -1, -1)
TESSERA_FORWARD(int, fstatvfs, (int fd, struct statvfs* to) noexcept, (fd, to), -1, fd)
TESSERA_FORWARD(int, mkdir, (const char* path, mode_t mode) noexcept, (path, mode), -1, -1)
TESSERA_FORWARD(int, rename, (const char* from, const char* to) noexcept, (from, to), -1, -1)
TESSERA_FORWARD(int, renameat2,
                (int a, const char* from, int b, const char* to, unsigned flags) noexcept,
                (a, from, b, to, flags), -1, -1)
TESSERA_FORWARD(int, link, (const char* from, const char* to) noexcept, (from, to), -1, -1)
TESSERA_FORWARD(int, unlink, (const char* path) noexcept, (path), -1, -1)
TESSERA_FORWARD(int, unlinkat, (int fd, const char* path, int flags) noexcept, (fd, path, flags),
                -1, -1)
TESSERA_FORWARD(char*, realpath, (const char* path, char* to) noexcept, (path, to), nullptr, -1)
TESSERA_FORWARD(DIR*, fdopendir, (int fd), (fd), nullptr, fd)
TESSERA_FORWARD(struct dirent*, readdir, (DIR * stream), (stream), nullptr, -1)

}  // extern "C"
