// A real disk that fills up: a small tmpfs in a namespace of its own, filled before the n-th
// operation of a reshard that replaces a checkpoint. Exit 6 or done, old or new, and once there is
// room again the next run needs no help.
#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <tessera/base/error.h>
#include <tessera/storage/observed_file_system.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "tests/faults/scene.h"

using namespace tessera;
using namespace tessera::faults;

namespace {

namespace stdfs = std::filesystem;

constexpr int kPromised = 64;
constexpr const char* kDiskOptions = "size=256k,mode=700";

/// Fills the disk before the n-th operation that may need room.
class FillingDisk final : public ObservedFileSystem {
 public:
  FillingDisk(FileSystem& inner, int at, std::string filler)
      : ObservedFileSystem(inner), left_(at), filler_(std::move(filler)) {}
  bool filled() const { return left_ <= 0; }

 protected:
  void before(const IoEvent& event) const override {
    switch (event.op) {
      case IoOp::kCreate:
      case IoOp::kReopen:
      case IoOp::kWrite:
      case IoOp::kAllocate:
      case IoOp::kSync:
      case IoOp::kClose:
      case IoOp::kCreateDirectory:
      case IoOp::kRename:
      case IoOp::kRenameNew:
      case IoOp::kExchange:
      case IoOp::kSyncDirectory:
      case IoOp::kLock:
        break;
      default:
        return;
    }
    if (--left_ != 0) return;
    const int fd = ::open(filler_.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    const std::string page(4096, 'x');
    while (::write(fd, page.data(), page.size()) > 0) {
    }
    ::close(fd);
  }

 private:
  mutable int left_;
  std::string filler_;
};

bool write_text(const char* path, const std::string& text) {
  const int fd = ::open(path, O_WRONLY | O_CLOEXEC);
  const bool done =
      fd >= 0 && ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (fd >= 0) ::close(fd);
  return done;
}

/// Gives this process mounts of its own. "" or why it may not.
std::string own_mounts() {
  const std::string uid = std::to_string(::getuid()), gid = std::to_string(::getgid());
  if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0)
    return std::string("unshare: ") + std::strerror(errno);
  write_text("/proc/self/setgroups", "deny");
  if (!write_text("/proc/self/uid_map", "0 " + uid + " 1") ||
      !write_text("/proc/self/gid_map", "0 " + gid + " 1"))
    return std::string("uid_map: ") + std::strerror(errno);
  return "";
}

struct Counts {
  int points = 0;
  int exhausted = 0;
  int old_kept = 0;
  int finished = 0;
};

/// One kind of work, on the disk mounted at `disk`.
struct Work {
  const char* name;
  std::string disk;
  void (Scene::*prepare)() const;
  void (Scene::*run)(FileSystem*) const;
  std::string (Scene::*shown)() const;
};

/// "" or what went wrong when the disk filled up at operation `at`; "over" when there is none.
std::string fill_at(const Scene& scene, const Work& work, int at, Counts& counts) {
  const std::string filler = work.disk + "/filler";
  (scene.*work.prepare)();
  const auto fs = make_posix_file_system();
  FillingDisk filling(*fs, at, filler);
  Status status;
  try {
    (scene.*work.run)(&filling);
  } catch (...) {
    status = current_exception_status();
  }
  if (!filling.filled()) return "over";
  ++counts.points;
  const std::string now = (scene.*work.shown)();
  if (now != "old" && now != "new" && now != "between") return now;
  if (status.ok() && now != "new") return "done, but " + now;
  if (!status.ok()) {
    ++counts.exhausted;
    if (status.code != Code::kResourceExhausted) return "not exit 6: " + status.to_string();
    const bool named = status.message.find(work.disk) != std::string::npos &&
                       status.message.find("space") != std::string::npos;
    const bool before_work = status.message.find(" are free at ") != std::string::npos;
    if (!named && !before_work) return "the message names no path: " + status.to_string();
    if (now == "between" && status.message.find("whole") == std::string::npos)
      return "nobody said that it is published: " + status.to_string();
  }
  counts.old_kept += now == "old";
  counts.finished += status.ok();
  stdfs::remove(filler);
  (scene.*work.run)(nullptr);
  if ((scene.*work.shown)() != "new") return "the next run did not finish";
  for (const auto& entry : stdfs::directory_iterator(work.disk))
    if (entry.path().filename().string().starts_with(".")) return "left " + entry.path().string();
  return "";
}

/// In a process of its own: all points. What to say, or "skipped: ...".
std::string fill_at_all_points(const Scene& scene, Counts& counts) {
  const std::string why = own_mounts();
  if (!why.empty()) return "skipped: " + why;
  const Work works[] = {
      {"reshard", scene.folder() + "/work", &Scene::prepare_output, &Scene::reshard,
       &Scene::shown_output},
      {"conversion", scene.folder() + "/work", &Scene::prepare_file, &Scene::convert,
       &Scene::shown_file},
      {"save", scene.folder() + "/run", &Scene::prepare_run, &Scene::save_next, &Scene::shown_run},
  };
  for (const Work& work : works) {
    if (::mount("tmpfs", work.disk.c_str(), "tmpfs", 0, kDiskOptions) != 0)
      return std::string("skipped: mount: ") + std::strerror(errno);
    for (int at = 1; at < 200; ++at) {
      try {
        const std::string problem = fill_at(scene, work, at, counts);
        if (problem == "over") break;
        if (!problem.empty()) return fmt::format("{}, point {}: {}", work.name, at, problem);
      } catch (const std::exception& error) {
        return fmt::format("{}, point {}: {}", work.name, at, error.what());
      }
    }
    ::umount(work.disk.c_str());
  }
  return "";
}

}  // namespace

TEST_CASE("a disk that fills up before any operation: exit 6 or done and old or new") {
  const Scene scene;
  int pipe[2];
  REQUIRE(::pipe(pipe) == 0);
  const pid_t pid = ::fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    Counts counts;
    const std::string problem = fill_at_all_points(scene, counts);
    (void)!::write(pipe[1], &counts, sizeof counts);
    (void)!::write(pipe[1], problem.data(), problem.size());
    ::_exit(0);
  }
  ::close(pipe[1]);
  Counts counts;
  REQUIRE(::read(pipe[0], &counts, sizeof counts) == sizeof counts);
  std::string problem;
  char buffer[4096];
  for (ssize_t got = 0; (got = ::read(pipe[0], buffer, sizeof buffer)) > 0;)
    problem.append(buffer, static_cast<std::size_t>(got));
  ::close(pipe[0]);
  ::waitpid(pid, nullptr, 0);
  if (problem.starts_with("skipped")) {
    fmt::print("full disk: {} (this machine gives no namespaces)\n", problem);
    return;
  }
  INFO(problem);
  REQUIRE(problem.empty());
  fmt::print(
      "full disk: a tmpfs filled at {} points of a reshard, a conversion and a save: {} ended with "
      "exit 6, {} done, {} left the old output; 0 mixes, the next run finished each time\n",
      counts.points, counts.exhausted, counts.finished, counts.old_kept);
  REQUIRE(counts.points >= kPromised);
  REQUIRE(counts.exhausted > 10);
  REQUIRE(counts.finished > 0);
}
