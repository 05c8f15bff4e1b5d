// Stands before the C library in a command (LD_PRELOAD) and refuses it memory or threads, as the
// environment says:
//
//   TESSERA_REFUSE_AT=N       the N-th allocation fails, once
//   TESSERA_REFUSE_FROM=N     it and all later ones fail
//   TESSERA_REFUSE_EACH=FILE  at every allocation that finds no second thread the process forks:
//                             the child goes without and on to its end, the parent waits, judges
//                             and goes on undisturbed. FILE holds what a right run prints.
//   TESSERA_REFUSE_STRIDE=K   only at every K-th of them, once kAllOfTheFirst are through
//   TESSERA_REFUSE_THREADS=N  the N-th thread and all later ones are refused
//   TESSERA_REFUSE_REPORT=F   at the end: a line of counts, then a line for each child that ended
//                             neither with the right output and 0, nor with 6 and one line
//
// Plain data and system calls only: an allocator can use nothing that allocates.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

extern "C" {
void* __libc_malloc(std::size_t size);
void* __libc_calloc(std::size_t count, std::size_t size);
void* __libc_realloc(void* old, std::size_t size);
void* __libc_memalign(std::size_t alignment, std::size_t size);
extern char** environ;
}

namespace {

constexpr rlim_t kMostSeconds = 20;  // of processor time of a child: a loop is killed
constexpr std::uint64_t kMostToldRuns = 20;
constexpr std::uint64_t kAllOfTheFirst = 100;  // the start
constexpr std::size_t kMostOutputBytes = std::size_t{1} << 20;

enum class Mode { kUnread, kCount, kOnce, kAllFrom, kEach };

constinit std::atomic<Mode> mode{Mode::kUnread};
constinit std::uint64_t at = 0;
constinit std::uint64_t thread_at = 0;
constinit std::uint64_t stride = 1;
constinit const char* expected_file = nullptr;
constinit const char* report_file = nullptr;
constinit bool inside = false;  // Mode::kEach: of the one thread there is
constinit bool is_child = false;
constinit std::atomic<std::uint64_t> allocations{0};
constinit std::atomic<std::uint64_t> refused_allocations{0};
constinit std::atomic<std::uint64_t> threads{0};
constinit std::atomic<std::uint64_t> refused_threads{0};
constinit std::atomic<int> other_threads{0};
constinit std::uint64_t right_runs = 0, told_runs = 0, bad_runs = 0;
constinit char told[1 << 14] = "";
constinit std::size_t told_bytes = 0;

void read_environment() {
  if (environ == nullptr) return;  // the loader's own start: what fails there never runs us
  report_file = ::getenv("TESSERA_REFUSE_REPORT");
  expected_file = ::getenv("TESSERA_REFUSE_EACH");
  const char* once = ::getenv("TESSERA_REFUSE_AT");
  const char* from = ::getenv("TESSERA_REFUSE_FROM");
  const char* thread = ::getenv("TESSERA_REFUSE_THREADS");
  if (thread != nullptr) thread_at = ::strtoull(thread, nullptr, 10);
  const char* every = ::getenv("TESSERA_REFUSE_STRIDE");
  if (every != nullptr) stride = ::strtoull(every, nullptr, 10);
  at = ::strtoull(once != nullptr ? once : from != nullptr ? from : "0", nullptr, 10);
  mode = expected_file != nullptr ? Mode::kEach
         : once != nullptr        ? Mode::kOnce
         : from != nullptr        ? Mode::kAllFrom
                                  : Mode::kCount;
}

/// What a child wrote.
struct Output {
  int fd = ::memfd_create("output", MFD_CLOEXEC);
  ~Output() { ::close(fd); }
  std::size_t bytes() const {
    struct stat status {};
    return ::fstat(fd, &status) == 0 ? static_cast<std::size_t>(status.st_size) : kMostOutputBytes;
  }
  std::size_t read(char* to, std::size_t most) const {
    const ssize_t got = ::pread(fd, to, most, 0);
    return got < 0 ? 0 : static_cast<std::size_t>(got);
  }
};

bool is_expected(const Output& out) {
  static char wanted[kMostOutputBytes], given[kMostOutputBytes];
  const int fd = ::open(expected_file, O_RDONLY | O_CLOEXEC);
  const ssize_t length = ::read(fd, wanted, sizeof wanted);
  ::close(fd);
  return length > 0 && out.bytes() == static_cast<std::size_t>(length) &&
         out.read(given, sizeof given) == static_cast<std::size_t>(length) &&
         ::memcmp(wanted, given, static_cast<std::size_t>(length)) == 0;
}

/// "COMMAND: ..." and perhaps "hint: ...".
bool is_one_complaint(const char* text, std::size_t length) {
  if (length == 0 || text[length - 1] != '\n' || ::strncmp(text, "ckpt-", 5) != 0) return false;
  const char* second = static_cast<const char*>(::memchr(text, '\n', length)) + 1;
  const std::size_t left = length - static_cast<std::size_t>(second - text);
  if (left == 0) return true;
  return ::strncmp(second, "hint: ", 6) == 0 && ::memchr(second, '\n', left) == text + length - 1;
}

void judge(std::uint64_t number, int status, const Output& out, const Output& err) {
  char text[2048] = "";
  const std::size_t length = err.read(text, sizeof text - 1);
  const int exit = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  const bool right = exit == 0 && is_expected(out);
  const bool said = exit == 6 && out.bytes() == 0 && is_one_complaint(text, length);
  right_runs += right;
  told_runs += said;
  if (right || said) return;
  if (++bad_runs > kMostToldRuns) return;
  for (char& c : text)
    if (c == '\n') c = '|';
  const int wrote =
      ::snprintf(told + told_bytes, sizeof told - told_bytes,
                 "allocation %llu: wait status %d, %zu bytes on stdout, stderr: %.300s\n",
                 static_cast<unsigned long long>(number), status, out.bytes(), text);
  if (wrote > 0) told_bytes += static_cast<std::size_t>(wrote);
  if (told_bytes >= sizeof told) told_bytes = sizeof told - 1;
}

/// True: this process is the child that goes without.
bool forked_child(std::uint64_t number) {
  inside = true;
  ++refused_allocations;
  const Output out, err;
  const pid_t pid = ::fork();
  if (pid == 0) {
    is_child = true;
    mode = Mode::kCount;
    const rlimit limit{kMostSeconds, kMostSeconds};
    ::setrlimit(RLIMIT_CPU, &limit);
    ::dup2(out.fd, 1);
    ::dup2(err.fd, 2);
    inside = false;
    return true;
  }
  int status = -1;
  if (pid > 0) ::waitpid(pid, &status, 0);
  judge(number, status, out, err);
  inside = false;
  return false;
}

bool refused_now() {
  if (mode == Mode::kUnread) read_environment();
  if (mode == Mode::kUnread || inside) return false;
  const std::uint64_t number = ++allocations;
  switch (mode) {
    case Mode::kOnce:
      if (number != at) return false;
      ++refused_allocations;
      return true;
    case Mode::kAllFrom:
      if (number < at) return false;
      ++refused_allocations;
      return true;
    case Mode::kEach:
      if (other_threads != 0 || (number > kAllOfTheFirst && number % stride != 0)) return false;
      return forked_child(number);
    default:
      return false;
  }
}

bool refused() {
  const int before = errno;
  const bool yes = refused_now();
  errno = yes ? ENOMEM : before;
  return yes;
}

struct Start {
  void* (*function)(void*);
  void* argument;
};

void* run_counted(void* data) {
  Start* given = static_cast<Start*>(data);
  const Start start = *given;
  ::free(given);
  void* result = start.function(start.argument);
  --other_threads;
  return result;
}

__attribute__((destructor)) void report() {
  if (is_child || report_file == nullptr) return;
  mode = Mode::kCount;
  char line[256];
  const int length = ::snprintf(
      line, sizeof line, "%llu %llu %llu %llu %llu %llu %llu\n",
      static_cast<unsigned long long>(allocations.load()),
      static_cast<unsigned long long>(refused_allocations.load()),
      static_cast<unsigned long long>(right_runs), static_cast<unsigned long long>(told_runs),
      static_cast<unsigned long long>(bad_runs), static_cast<unsigned long long>(threads.load()),
      static_cast<unsigned long long>(refused_threads.load()));
  const int fd = ::open(report_file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (::write(fd, line, static_cast<std::size_t>(length)) != length ||
      ::write(fd, told, told_bytes) < 0)
    ::abort();
  ::close(fd);
}

}  // namespace

extern "C" {

void* malloc(std::size_t size) { return refused() ? nullptr : __libc_malloc(size); }
void* calloc(std::size_t count, std::size_t size) {
  return refused() ? nullptr : __libc_calloc(count, size);
}
void* realloc(void* old, std::size_t size) {
  return refused() ? nullptr : __libc_realloc(old, size);
}
void* memalign(std::size_t alignment, std::size_t size) {
  return refused() ? nullptr : __libc_memalign(alignment, size);
}
void* aligned_alloc(std::size_t alignment, std::size_t size) {
  return refused() ? nullptr : __libc_memalign(alignment, size);
}
int posix_memalign(void** to, std::size_t alignment, std::size_t size) {
  if (refused()) return ENOMEM;
  *to = __libc_memalign(alignment, size);
  return *to == nullptr ? ENOMEM : 0;
}
/// Of mappings those alone that are memory and no file. (The C library's own do not come by here.)
void* mmap(void* address, std::size_t length, int protection, int flags, int fd, off_t offset) {
  if ((flags & MAP_ANONYMOUS) != 0 && refused()) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  return reinterpret_cast<void*>(
      ::syscall(SYS_mmap, address, length, protection, flags, fd, offset));
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*function)(void*),
                   void* argument) {
  using Create = int(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static Create* const real = reinterpret_cast<Create*>(::dlsym(RTLD_NEXT, "pthread_create"));
  if (mode == Mode::kUnread) read_environment();
  const std::uint64_t number = ++threads;
  if (thread_at != 0 && number >= thread_at) {
    ++refused_threads;
    return EAGAIN;
  }
  auto* const start = static_cast<Start*>(__libc_malloc(sizeof(Start)));
  if (start == nullptr) return EAGAIN;
  *start = {function, argument};
  ++other_threads;
  const int error = real(thread, attributes, run_counted, start);
  if (error != 0) {
    --other_threads;
    ::free(start);
  }
  return error;
}

}  // extern "C"
