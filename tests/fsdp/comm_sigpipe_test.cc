// A peer that has gone ends a call and never the process: SIGPIPE is kept from Gloo's writes, and
// from nothing else.
#include <sys/socket.h>
#include <torch/torch.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "fsdp_core/comm/no_sigpipe.h"
#include "tests/fsdp/comm_support.h"

namespace comm_sigpipe_test {

using namespace tessera::fsdp;
using namespace tessera::fsdp::testing;

namespace {

/// The errno of a write to a connection whose other end is closed.
int write_to_nobody() {
  int ends[2];
  require(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "socketpair");
  ::close(ends[1]);
  const int written = static_cast<int>(::write(ends[0], "x", 1));
  const int error = errno;
  ::close(ends[0]);
  return written < 0 ? error : 0;
}

bool blocks_sigpipe(const std::filesystem::path& thread) {
  std::ifstream status(thread / "status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("SigBlk:"))
      return std::stoull(line.substr(7), nullptr, 16) >> (SIGPIPE - 1) & 1;
  return false;
}

int threads_without_sigpipe() {
  int count = 0;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task"))
    count += blocks_sigpipe(thread.path());
  return count;
}

}  // namespace

TEST_CASE("writing to a peer that has gone is an error and no signal") {
  REQUIRE(std::signal(SIGPIPE, SIG_DFL) == SIG_DFL);  // a signal would end this process
  {
    const NoSigpipe no_sigpipe;
    CHECK(write_to_nobody() == EPIPE);
    int in_thread = 0;
    std::thread([&] { in_thread = write_to_nobody(); }).join();
    CHECK(in_thread == EPIPE);
    {
      const NoSigpipe inner;
      CHECK(write_to_nobody() == EPIPE);
    }
    CHECK(write_to_nobody() == EPIPE);
  }
  sigset_t now;
  pthread_sigmask(SIG_BLOCK, nullptr, &now);
  CHECK(sigismember(&now, SIGPIPE) == 0);
  sigpending(&now);
  CHECK(sigismember(&now, SIGPIPE) == 0);
}

TEST_CASE("the threads that Gloo writes from take no SIGPIPE") {
  const int before = threads_without_sigpipe();
  WorldOptions options;
  options.backend = "gloo";
  const auto thrown = thrown_by_ranks(
      2,
      [&](World& world) {
        at::Tensor ones = at::ones({4});
        world.communicator()->all_reduce(ones, Reduce::kSum, {"unit", CommPhase::kForward});
        require(threads_without_sigpipe() >= before + 2, "Gloo's threads take SIGPIPE");
        require(!blocks_sigpipe("/proc/thread-self"), "the caller's own mask is changed");
        world.communicator()->barrier({"unit", CommPhase::kForward});
      },
      options);
  for (const auto& error : thrown) CHECK(error == "");
}

}  // namespace comm_sigpipe_test
