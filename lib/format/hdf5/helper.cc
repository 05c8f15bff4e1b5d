#include "lib/format/hdf5/helper.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <tessera/base/error.h>
#include <tessera/base/interrupted.h>
#include <tessera/base/text.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "lib/base/program_folder.h"
#include "lib/format/hdf5/wire.h"
#include "lib/storage/posix/unique_fd.h"

#ifndef TESSERA_LIBEXEC_DIR
#define TESSERA_LIBEXEC_DIR ""
#endif

namespace tessera::h5 {
namespace {

using storage::UniqueFd;
using Clock = std::chrono::steady_clock;

// Names, attributes and chunk places are in the file, so that the report is no longer than this
// share of it, but for a constant.
constexpr std::uint64_t kReportSlackBytes = std::uint64_t{32} << 20;
constexpr std::uint64_t kMaxReportBytes = std::uint64_t{1} << 30;

std::uint64_t report_limit(std::uint64_t file_bytes) {
  return std::min(kMaxReportBytes, kReportSlackBytes + 2 * std::min(file_bytes, kMaxReportBytes));
}

/// A small file has no claim to much time: 10,000 datasets take a third of a second, in 4 MiB.
HelperLimits scaled(HelperLimits limits, std::uint64_t file_bytes) {
  const std::uint64_t seconds = 1 + (file_bytes >> 20);
  if (seconds < limits.cpu_seconds) limits.cpu_seconds = static_cast<std::uint32_t>(seconds);
  return limits;
}

bool is_program(const std::string& path) {
  return !path.empty() && ::access(path.c_str(), X_OK) == 0;
}

/// The child process; killed and reaped whatever happens.
class ChildProcess {
 public:
  ChildProcess(const std::string& program, int socket) {
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, socket, 0);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    sigset_t none, standard;
    sigemptyset(&none);
    sigfillset(&standard);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &standard);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    std::string name = "tessera-hdf5";
    char* arguments[] = {name.data(), nullptr};
    // Only what the loader needs: no variable of the user's steers libhdf5.
    std::string libraries;
    if (const char* path = std::getenv("LD_LIBRARY_PATH"))
      libraries = fmt::format("LD_LIBRARY_PATH={}", path);
    char* environment[] = {libraries.empty() ? nullptr : libraries.data(), nullptr};
    const int error =
        posix_spawn(&pid_, program.c_str(), &actions, &attributes, arguments, environment);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    if (error != 0)
      fail(Code::kIo,
           fmt::format("\"{}\" cannot be started: {}", printable(program), std::strerror(error)));
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  ~ChildProcess() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      wait();
    }
  }
  /// Its wait status; -1 when somebody else reaped it.
  int wait() {
    Interruptions interruptions;
    int status = -1;
    pid_t done;
    while ((done = ::waitpid(pid_, &status, 0)) < 0 && interruptions.retry()) {
    }
    pid_ = 0;
    return done < 0 ? -1 : status;
  }

 private:
  pid_t pid_ = 0;
};

class Conversation {
 public:
  Conversation(const std::string& helper, const ReadFile& file, HelperLimits limits)
      : file_(file),
        limits_(scaled(limits, file.size_bytes())),
        socket_(open_pair()),
        child_(helper, peer_.get()) {
    peer_ = UniqueFd();
  }

  Bytes run() {
    Hello hello;
    hello.file_bytes = file_.size_bytes();
    hello.max_report_bytes = report_limit(hello.file_bytes);
    hello.cpu_seconds = limits_.cpu_seconds;
    send_all(ByteView(reinterpret_cast<const std::byte*>(&hello), sizeof hello));
    while (true) {
      std::byte head[5];
      receive(head);
      const auto length = load_le<std::uint32_t>(head + 1);
      if (length > kMaxFrameBytes) garbage();
      payload_.resize(length);
      receive(payload_);
      switch (static_cast<Frame>(head[0])) {
        case Frame::kRead:
          serve();
          break;
        case Frame::kData:
          if (payload_.size() > hello.max_report_bytes - report_.size())
            fail(Code::kResourceExhausted, "tessera-hdf5 describes more than the file can hold");
          report_.insert(report_.end(), payload_.begin(), payload_.end());
          break;
        case Frame::kError:
          refuse();
        case Frame::kEnd:
          return std::move(report_);
        default:
          garbage();
      }
    }
  }

 private:
  UniqueFd open_pair() {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
      fail(Code::kIo, fmt::format("no socket for tessera-hdf5: {}", std::strerror(errno)));
    peer_ = UniqueFd(ends[1]);
    return UniqueFd(ends[0]);
  }

  void serve() {
    if (payload_.size() != 12) garbage();
    const auto offset = load_le<std::uint64_t>(payload_.data());
    const auto length = load_le<std::uint32_t>(payload_.data() + 8);
    const std::uint64_t size = file_.size_bytes();
    if (length > kMaxFrameBytes || offset > size || length > size - offset) garbage();
    bytes_.resize(length);
    file_.read_at(offset, bytes_);
    send_all(bytes_);
  }

  [[noreturn]] void refuse() {
    constexpr std::string_view kNewerLibrary =
        "a newer HDF5 library wrote it: write it with libver=\"v110\" (h5py), or rewrite it "
        "with that library's h5repack --high=2";
    if (payload_.empty()) garbage();
    const std::string text = printable(as_text(ByteView(payload_).subspan(1)));
    switch (static_cast<ErrorKind>(payload_[0])) {
      case ErrorKind::kUnsupported:
        fail(Code::kUnsupported, text,
             text.find("version number") == text.npos ? std::string() : std::string(kNewerLibrary));
      case ErrorKind::kExhausted:
        fail(Code::kResourceExhausted, text);
      default:
        fail(Code::kCorrupt, text);
    }
  }
  [[noreturn]] static void garbage() { fail(Code::kCorrupt, "tessera-hdf5 answered with garbage"); }

  /// The socket closed before the report was whole.
  [[noreturn]] void gone() {
    const int status = child_.wait();
    if (status != -1 && WIFSIGNALED(status)) {
      const int signal = WTERMSIG(status);
      if (signal == SIGXCPU || signal == SIGKILL)
        fail(Code::kResourceExhausted,
             fmt::format("reading its metadata takes more than {} s of processor time or the "
                         "memory there is",
                         limits_.cpu_seconds));
      fail(Code::kCorrupt,
           fmt::format("libhdf5 was stopped by signal {} ({}) over it; the file is "
                       "damaged or hostile",
                       signal, signal == SIGSYS ? "a forbidden system call" : ::strsignal(signal)));
    }
    if (status != -1 && WIFEXITED(status) && WEXITSTATUS(status) == 127)
      fail(Code::kUnsupported, "tessera-hdf5 does not start: its libraries are missing");
    fail(Code::kCorrupt, "tessera-hdf5 ended before it had described the file");
  }

  [[noreturn]] void fail_talk(int error) {
    fail(Code::kIo, fmt::format("cannot talk to tessera-hdf5 about {}: {}", file_.path(),
                                std::strerror(error)));
  }

  void wait_for(short events, Clock::time_point deadline) {
    Interruptions interruptions;
    while (true) {
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
      pollfd entry{socket_.get(), events, 0};
      const int n = ::poll(&entry, 1, static_cast<int>(std::max<std::int64_t>(0, left)));
      if (n > 0) return;
      if (n < 0 && interruptions.retry()) continue;
      if (n < 0) fail_talk(errno);
      fail(Code::kResourceExhausted,
           fmt::format("tessera-hdf5 said nothing for {} ms", limits_.silence_ms));
    }
  }
  Clock::time_point deadline() const {
    return Clock::now() + std::chrono::milliseconds(limits_.silence_ms);
  }
  void receive(MutableBytes out) {
    const auto until = deadline();
    Interruptions interruptions;
    while (!out.empty()) {
      wait_for(POLLIN, until);
      const ssize_t n = ::recv(socket_.get(), out.data(), out.size(), MSG_DONTWAIT);
      if (n < 0 && (errno == EAGAIN || interruptions.retry())) continue;
      if (n < 0 && errno == EINTR) fail_talk(EINTR);  // nothing that it did
      if (n <= 0) gone();
      out = out.subspan(static_cast<std::size_t>(n));
    }
  }
  void send_all(ByteView bytes) {
    const auto until = deadline();
    Interruptions interruptions;
    while (!bytes.empty()) {
      wait_for(POLLOUT, until);
      const ssize_t n =
          ::send(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n < 0 && (errno == EAGAIN || interruptions.retry())) continue;
      if (n < 0 && errno == EINTR) fail_talk(EINTR);  // nothing that it did
      if (n <= 0) return;                             // it is gone; what it left to read says why
      bytes = bytes.subspan(static_cast<std::size_t>(n));
    }
  }

  const ReadFile& file_;
  HelperLimits limits_;
  UniqueFd peer_;  // before socket_: open_pair sets both
  UniqueFd socket_;
  ChildProcess child_;
  Bytes payload_, bytes_, report_;
};

}  // namespace

std::string find_helper() {
  if (const char* path = std::getenv("TESSERA_HDF5")) {
    if (is_program(path)) return path;
    fail(Code::kUnsupported,
         fmt::format("TESSERA_HDF5 names \"{}\", which is no program", printable(path)));
  }
  const std::string folder = program_folder();
  for (const std::string& place :
       {folder, folder + "/../libexec/tessera", std::string(TESSERA_LIBEXEC_DIR)}) {
    std::string program = place + "/tessera-hdf5";
    if (is_program(program)) return program;
  }
  fail(Code::kUnsupported, "reading HDF5 needs the program tessera-hdf5, which is not here",
       "build with libhdf5-dev installed, or name it in TESSERA_HDF5");
}

Bytes describe_file(const std::string& helper, const ReadFile& file, const HelperLimits& limits) {
  return Conversation(helper, file, limits).run();
}

}  // namespace tessera::h5
