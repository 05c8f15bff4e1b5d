// Pickles that want to run something, read by every verb in a process that the kernel kills at its
// first attempt to start a program, a process or a connection.
#include <fmt/format.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <tessera/base/error.h>
#include <tessera/ops/convert.h>
#include <tessera/ops/hash.h>
#include <tessera/ops/ls.h>
#include <tessera/ops/verify.h>
#include <tessera/storage/memory_file_system.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstddef>
#include <functional>

#include "tests/support/hostile_bytes.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

/// From here on these calls kill the process (SIGSYS). False where the kernel does not let us.
bool forbid_programs_and_connections() {
  constexpr int kForbidden[] = {SYS_execve, SYS_execveat, SYS_fork,    SYS_vfork,
                                SYS_clone,  SYS_clone3,   SYS_connect, SYS_socket,
                                SYS_ptrace, SYS_kill,     SYS_unlink,  SYS_unlinkat};
  std::vector<sock_filter> program;
  program.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)));
  for (const int call : kForbidden) {
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(call), 0, 1));
    program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

constexpr int kNotConfined = 41;

/// Wait status of a child that confines itself and does this.
int confined(const std::function<int()>& act) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    if (!forbid_programs_and_connections()) ::_exit(kNotConfined);
    ::_exit(act());
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

/// What public attacks on pickle call, and what scanners have missed.
const std::pair<const char*, const char*> kCallables[] = {
    {"os", "system"},
    {"posix", "system"},
    {"nt", "system"},
    {"os", "popen"},
    {"os", "execv"},
    {"os", "remove"},
    {"subprocess", "Popen"},
    {"subprocess", "check_output"},
    {"builtins", "eval"},
    {"builtins", "exec"},
    {"builtins", "compile"},
    {"builtins", "__import__"},
    {"builtins", "open"},
    {"builtins", "getattr"},
    {"__builtin__", "eval"},
    {"importlib", "import_module"},
    {"runpy", "_run_code"},
    {"ctypes", "CDLL"},
    {"socket", "create_connection"},
    {"shutil", "rmtree"},
    {"pickle", "loads"},
    {"sys", "exit"},
};
/// Not on any list: kept as opaque values, never called.
const std::pair<const char*, const char*> kUnknown[] = {
    {"webbrowser", "open"},
    {"pty", "spawn"},
    {"timeit", "timeit"},
    {"numpy.testing._private.utils", "runstring"},
    {"torch.hub", "load"},
    {"pip._internal", "main"},
    {"asyncio.unix_events", "_UnixSubprocessTransport._start"},
};

struct Counts {
  int pickles = 0;
  int refused = 0;  // runs of a verb
  int listed = 0;   // runs that ended well: opaque values
  int wrong = 0;    // a denied one that no verb refused, or an internal error
};

/// Every verb over one file; whether each refused.
void read_it(const std::string& file, const std::string& content, bool denied, Counts& counts) {
  ++counts.pickles;
  int refused = 0, ended = 0;
  const auto attempt = [&](const std::function<void(MemoryFileSystem&, const std::string&)>& verb) {
    MemoryFileSystem fs;
    fs.write_file("/ck/" + file, as_bytes(content));
    fs.write_file("/ck/__0_0.distcp", as_bytes(std::string(64, 'x')));
    const std::string path = file == ".metadata" ? "/ck" : "/ck/" + file;
    try {
      verb(fs, path);
      ++ended;
    } catch (const Error& error) {
      ++refused;
      if (error.code() == Code::kInternal) ++counts.wrong;
    }
  };
  attempt([](MemoryFileSystem& fs, const std::string& path) { open_checkpoint(fs, path); });
  attempt([](MemoryFileSystem& fs, const std::string& path) {
    OpenedCheckpoint opened = open_checkpoint(fs, path);
    opened.locate_all({});
    hash_checkpoint(opened);
  });
  attempt([](MemoryFileSystem& fs, const std::string& path) {
    VerifyOptions options;
    options.level = VerifyLevel::kFull;
    options.transfer.threads = 1;
    if (!verify_checkpoint(fs, path, options).ok) fail(Code::kCorrupt, "findings");
  });
  attempt([](MemoryFileSystem& fs, const std::string& path) {
    ConvertOptions options;
    options.source = path;
    options.destination = "/out";
    options.to = "torch-dcp";
    options.threads = 1;
    convert(fs, options);
  });
  counts.refused += refused;
  counts.listed += ended;
  if (denied && ended > 0) ++counts.wrong;
}

int read_all(int report) {
  Counts counts;
  const auto all = [&](const auto& callables, bool denied) {
    for (const auto& [module, name] : callables) {
      for (const std::string& pickle : hostile_pickles(module, name)) {
        read_it("a.pt", torch_zip_of(pickle, std::string(16, 'x')), denied, counts);
        read_it(".metadata", pickle, denied, counts);
      }
    }
  };
  all(kCallables, true);
  all(kUnknown, false);
  return ::write(report, &counts, sizeof counts) == sizeof counts ? 0 : 1;
}

}  // namespace

TEST_CASE("the filter of the hostile pickles kills what starts a program or a connection") {
  const int exec = confined([] {
    ::execl("/bin/true", "true", nullptr);
    return 0;
  });
  if (WIFEXITED(exec) && WEXITSTATUS(exec) == kNotConfined) {
    fmt::print("hostile pickles: skipped, this system has no seccomp\n");
    return;
  }
  CHECK((WIFSIGNALED(exec) && WTERMSIG(exec) == SIGSYS));
  const int forked = confined([] { return ::fork() == 0 ? 0 : 1; });
  CHECK((WIFSIGNALED(forked) && WTERMSIG(forked) == SIGSYS));
  const int connected = confined([] { return static_cast<int>(::syscall(SYS_socket, 1, 1, 0)); });
  CHECK((WIFSIGNALED(connected) && WTERMSIG(connected) == SIGSYS));
}

TEST_CASE("no hostile pickle runs anything") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const int status = confined([&] { return read_all(ends[1]); });
  ::close(ends[1]);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNotConfined) {
    fmt::print("hostile pickles: skipped, this system has no seccomp\n");
    ::close(ends[0]);
    return;
  }
  INFO("wait status " << status);
  REQUIRE(WIFEXITED(status));
  REQUIRE(WEXITSTATUS(status) == 0);
  Counts counts;
  REQUIRE(::read(ends[0], &counts, sizeof counts) == sizeof counts);
  ::close(ends[0]);
  fmt::print(
      "hostile pickles: {} (callables in 14 forms, in archives and in .metadata) under every verb: "
      "{} "
      "runs refused, {} listed opaque values; 0 started anything\n",
      counts.pickles, counts.refused, counts.listed);
  CHECK(counts.wrong == 0);
  CHECK(counts.pickles >= 200);
}
