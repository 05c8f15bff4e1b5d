// The confinement of tessera-hdf5: after confine(), a process computes and speaks over what it has
// open, and dies of everything else.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <functional>

#include "tools/hdf5_helper/confine.h"

namespace hdf5_confinement_test {

namespace {

// Exit statuses of the child.
constexpr int kFine = 0;
constexpr int kSurvived = 40;
constexpr int kNotConfined = 41;

/// Wait status of a child that confines itself and does this. A pipe's writing end is its
/// descriptor 0.
int confined(const std::function<int()>& act) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    dup2(ends[1], 0);
    if (!tessera::h5::confine(1)) _exit(kNotConfined);
    _exit(act());
  }
  close(ends[1]);
  int status = 0;
  waitpid(child, &status, 0);
  close(ends[0]);
  return status;
}

bool died_of(int status, int signal) { return WIFSIGNALED(status) && WTERMSIG(status) == signal; }

}  // namespace

TEST_CASE("a confined process may compute, allocate and write to what it has") {
  const int status = confined([] {
    void* memory = std::malloc(1 << 20);
    const bool wrote = write(0, "x", 1) == 1;
    std::free(memory);
    return memory && wrote ? kFine : kSurvived;
  });
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == kFine);
}

TEST_CASE("a confined process does not sleep, and believes that it did") {
  const auto start = std::chrono::steady_clock::now();
  const int status = confined([] { return sleep(20) == 0 ? kFine : kSurvived; });
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == kFine));
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
}

TEST_CASE("a confined process dies of opening a file, a socket, a process, or executable memory") {
  CHECK(died_of(confined([] { return open("/etc/hostname", O_RDONLY), kSurvived; }), SIGSYS));
  CHECK(
      died_of(confined([] { return creat("/tmp/ckpt_hostile_marker", 0600), kSurvived; }), SIGSYS));
  CHECK(died_of(confined([] { return socket(AF_INET, SOCK_STREAM, 0), kSurvived; }), SIGSYS));
  CHECK(died_of(confined([] { return fork(), kSurvived; }), SIGSYS));
  CHECK(died_of(confined([] {
                  char* const arguments[] = {nullptr};
                  return execve("/bin/true", arguments, arguments), kSurvived;
                }),
                SIGSYS));
  CHECK(died_of(confined([] { return kill(getppid(), 0), kSurvived; }), SIGSYS));
  CHECK(died_of(confined([] {
                  mmap(nullptr, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                  return kSurvived;
                }),
                SIGSYS));
  CHECK(died_of(confined([] {
                  void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                  mprotect(page, 4096, PROT_READ | PROT_EXEC);
                  return kSurvived;
                }),
                SIGSYS));
}

TEST_CASE("a confined process has no other descriptor, bounded memory and bounded time") {
  const int other = open("/dev/null", O_WRONLY);
  REQUIRE(other > 0);
  const int status = confined([&] { return write(other, "x", 1) < 0 ? kFine : kSurvived; });
  close(other);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == kFine));
  const int memory = confined([] {
    for (int i = 0; i < 64; ++i) {
      void* part = mmap(nullptr, std::size_t{64} << 20, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (part == MAP_FAILED) return kFine;
    }
    return kSurvived;  // 4 GiB
  });
  CHECK((WIFEXITED(memory) && WEXITSTATUS(memory) == kFine));
  const int time = confined([] {
    volatile bool forever = true;
    while (forever) {
    }
    return kSurvived;
  });
  CHECK(died_of(time, SIGXCPU));
}

}  // namespace hdf5_confinement_test
