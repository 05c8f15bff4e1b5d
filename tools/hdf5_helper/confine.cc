#include "tools/hdf5_helper/confine.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace tessera::h5 {
namespace {

constexpr rlim_t kDataBytes = rlim_t{1} << 30;
// Address space holds reservations that are never touched (see chunk_places), hence more.
constexpr rlim_t kAddressBytes = rlim_t{7} << 30;

#if defined(__x86_64__)
constexpr std::uint32_t kArch = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr std::uint32_t kArch = AUDIT_ARCH_AARCH64;
#else
#error "the system call filter knows x86_64 and aarch64"
#endif

// Socket and memory, nothing that names a file, a process or an address.
constexpr long kAllowed[] = {
    SYS_read,  SYS_write,        SYS_brk,           SYS_munmap,       SYS_mremap,    SYS_madvise,
    SYS_futex, SYS_exit,         SYS_exit_group,    SYS_rt_sigreturn, SYS_getrandom, SYS_fstat,
    SYS_lseek, SYS_gettimeofday, SYS_clock_gettime, SYS_sched_yield,  SYS_close,
};

// Said to be done, and not done: libhdf5 sleeps before it reads a block with a wrong checksum
// again.
constexpr long kPretended[] = {SYS_nanosleep, SYS_clock_nanosleep};

/// SIGXCPU, sent past the soft limit of RLIMIT_CPU, shows the toolkit why the helper ended; hence
/// `slack`.
bool limit(int what, rlim_t value, rlim_t slack = 0) {
  rlimit old{};
  if (getrlimit(what, &old) != 0) return false;
  const rlimit now{std::min(old.rlim_max, value), std::min(old.rlim_max, value + slack)};
  return setrlimit(what, &now) == 0;
}

sock_filter statement(std::uint16_t code, std::uint32_t k) { return {code, 0, 0, k}; }
sock_filter jump(std::uint16_t test, std::uint32_t k, std::uint8_t yes, std::uint8_t no) {
  return {static_cast<std::uint16_t>(BPF_JMP | test | BPF_K), yes, no, k};
}
sock_filter load(std::size_t offset) {
  return statement(BPF_LD | BPF_W | BPF_ABS, static_cast<std::uint32_t>(offset));
}

/// mmap and mprotect pass unless they ask for executable memory; mmap of a descriptor is of no use,
/// as only a socket is open.
void allow_unless_executable(std::vector<sock_filter>& program, long call) {
  program.push_back(jump(BPF_JEQ, static_cast<std::uint32_t>(call), 0, 4));
  program.push_back(load(offsetof(seccomp_data, args) + 2 * sizeof(std::uint64_t)));
  program.push_back(jump(BPF_JSET, PROT_EXEC, 0, 1));
  program.push_back(statement(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS));
  program.push_back(statement(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
}

bool filter_calls() {
  std::vector<sock_filter> program;
  program.push_back(load(offsetof(seccomp_data, arch)));
  program.push_back(jump(BPF_JEQ, kArch, 1, 0));
  program.push_back(statement(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS));
  program.push_back(load(offsetof(seccomp_data, nr)));
  const auto answer = [&](long call, std::uint32_t action) {
    program.push_back(jump(BPF_JEQ, static_cast<std::uint32_t>(call), 0, 1));
    program.push_back(statement(BPF_RET | BPF_K, action));
  };
  for (const long call : kAllowed) answer(call, SECCOMP_RET_ALLOW);
  for (const long call : kPretended) answer(call, SECCOMP_RET_ERRNO);  // with error 0
  allow_unless_executable(program, SYS_mmap);
  allow_unless_executable(program, SYS_mprotect);
  program.push_back(statement(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS));
  const sock_fprog whole{static_cast<unsigned short>(program.size()), program.data()};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &whole) == 0;
}

}  // namespace

bool confine(std::uint32_t cpu_seconds) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  prctl(PR_SET_DUMPABLE, 0);
  // Whatever the command had open without close-on-exec.
  if (syscall(SYS_close_range, 1U, ~0U, 0U) != 0)
    for (int fd = 1; fd < 65536; ++fd) close(fd);
  return limit(RLIMIT_CORE, 0) && limit(RLIMIT_FSIZE, 0) && limit(RLIMIT_NOFILE, 1) &&
         limit(RLIMIT_CPU, cpu_seconds, 1) && limit(RLIMIT_DATA, kDataBytes) &&
         limit(RLIMIT_AS, kAddressBytes) && filter_calls();
}

}  // namespace tessera::h5
