#include "tests/support/process_ranks.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <tessera/base/bytes.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <optional>
#include <stdexcept>

namespace tessera::test {

namespace {

constexpr int kGiveUpSeconds = 30;
constexpr int kPeerMs = 20'000;

[[noreturn]] void gone(int peer) { fail(Code::kIo, fmt::format("rank {} is gone", peer)); }

void send_all(int fd, int peer, const void* data, std::size_t size) {
  const auto* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t sent = ::send(fd, at, size, MSG_NOSIGNAL);
    if (sent <= 0) gone(peer);
    at += sent;
    size -= static_cast<std::size_t>(sent);
  }
}

void receive_all(int fd, int peer, void* data, std::size_t size) {
  auto* at = static_cast<char*>(data);
  while (size > 0) {
    pollfd wait{fd, POLLIN, 0};
    if (::poll(&wait, 1, kPeerMs) <= 0)
      fail(Code::kTimeout, fmt::format("rank {} does not answer", peer));
    const ssize_t got = ::recv(fd, at, size, 0);
    if (got <= 0) gone(peer);
    at += got;
    size -= static_cast<std::size_t>(got);
  }
}

/// Messages must fit the sockets' buffers: everybody sends before anybody receives.
class ProcessRank final : public RankGroup {
 public:
  ProcessRank(int rank, std::vector<int> peers) : rank_(rank), peers_(std::move(peers)) {}
  ~ProcessRank() override {
    for (const int fd : peers_)
      if (fd >= 0) ::close(fd);
  }
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(peers_.size()); }

  std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> bytes) override {
    const std::uint64_t size = bytes.size();
    for (int peer = 0; peer < this->size(); ++peer) {
      if (peer == rank_) continue;
      send_all(peers_[static_cast<std::size_t>(peer)], peer, &size, sizeof size);
      send_all(peers_[static_cast<std::size_t>(peer)], peer, bytes.data(), bytes.size());
    }
    std::vector<std::vector<std::byte>> all(peers_.size());
    for (int peer = 0; peer < this->size(); ++peer) {
      auto& theirs = all[static_cast<std::size_t>(peer)];
      if (peer == rank_) {
        theirs.assign(bytes.begin(), bytes.end());
        continue;
      }
      std::uint64_t length = 0;
      receive_all(peers_[static_cast<std::size_t>(peer)], peer, &length, sizeof length);
      theirs.resize(length);
      receive_all(peers_[static_cast<std::size_t>(peer)], peer, theirs.data(), length);
    }
    return all;
  }

 private:
  int rank_;
  std::vector<int> peers_;  // sockets, -1 for this rank
};

using Clock = std::chrono::steady_clock;

struct Child {
  pid_t pid = -1;
  int report = -1;  // pipe: what it threw
  bool ended = false;
};

[[noreturn]] void run_child(int rank, std::vector<int> sockets, int report,
                            const std::function<void(RankGroup&)>& body) {
  std::string thrown;
  try {
    ProcessRank group(rank, std::move(sockets));
    body(group);
  } catch (const std::exception& error) {
    thrown = error.what();
  }
  if (!thrown.empty())
    (void)!::write(report, thrown.data(), std::min<std::size_t>(thrown.size(), 60'000));
  ::_exit(thrown.empty() ? 0 : 1);
}

std::string read_report(int fd) {
  std::string text;
  char buffer[4096];
  for (ssize_t got = 0; (got = ::read(fd, buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(got));
  ::close(fd);
  return text;
}

}  // namespace

std::vector<RankEnd> in_processes(int size, const std::function<void(RankGroup&)>& body) {
  const auto n = static_cast<std::size_t>(size);
  std::vector<std::vector<int>> sockets(n, std::vector<int>(n, -1));
  for (std::size_t a = 0; a < n; ++a) {
    for (std::size_t b = a + 1; b < n; ++b) {
      int pair[2];
      if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        throw std::runtime_error("no sockets");
      sockets[a][b] = pair[0];
      sockets[b][a] = pair[1];
    }
  }
  std::vector<Child> children(n);
  for (std::size_t r = 0; r < n; ++r) {
    int pipe[2];
    if (::pipe(pipe) != 0) throw std::runtime_error("no pipe");
    children[r].pid = ::fork();
    if (children[r].pid < 0) throw std::runtime_error("no process");
    if (children[r].pid == 0) {
      ::close(pipe[0]);
      for (std::size_t other = 0; other < n; ++other) {
        for (const int fd : sockets[other])
          if (other != r && fd >= 0) ::close(fd);
      }
      run_child(static_cast<int>(r), sockets[r], pipe[1], body);
    }
    ::close(pipe[1]);
    children[r].report = pipe[0];
  }
  for (auto& row : sockets)
    for (const int fd : row)
      if (fd >= 0) ::close(fd);

  std::vector<RankEnd> ends(n);
  const Clock::time_point start = Clock::now();
  std::optional<Clock::time_point> first_kill;
  for (std::size_t left = n; left > 0;) {
    for (std::size_t r = 0; r < n; ++r) {
      Child& child = children[r];
      int status = 0;
      if (child.ended || ::waitpid(child.pid, &status, WNOHANG) == 0) continue;
      child.ended = true;
      --left;
      ends[r].killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
      if (ends[r].killed && !first_kill) first_kill = Clock::now();
      if (first_kill)
        ends[r].seconds = std::chrono::duration<double>(Clock::now() - *first_kill).count();
      ends[r].thrown = read_report(child.report);
    }
    if (Clock::now() - start > std::chrono::seconds(kGiveUpSeconds)) {
      for (std::size_t r = 0; r < n; ++r) {
        if (children[r].ended) continue;
        ::kill(children[r].pid, SIGKILL);
        ::waitpid(children[r].pid, nullptr, 0);
        ends[r].thrown = "still running";
      }
      break;
    }
    ::usleep(1000);
  }
  return ends;
}

}  // namespace tessera::test
