// exit() with a save in the background: the save is whole before the process ends.
#include <sys/wait.h>
#include <tessera/storage/observed_file_system.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "tests/support/killed_job.h"
#include "tests/support/sanitized.h"

namespace live_exit_test {

using namespace tessera;
using namespace tessera::test;
using Clock = std::chrono::steady_clock;

namespace {

/// Does something before every write.
class EventfulFileSystem final : public ObservedFileSystem {
 public:
  EventfulFileSystem(FileSystem& inner, std::function<void()> event)
      : ObservedFileSystem(inner), event_(std::move(event)) {}

 protected:
  void before(const IoEvent& event) const override {
    if (event.op == IoOp::kWrite) event_();
  }

 private:
  std::function<void()> event_;
};

/// What a program has when it calls exit().
struct Program {
  explicit Program(std::function<void()> at_write) : files(*disk, std::move(at_write)) {}
  PendingSave begin(const std::string& path) {
    return save_async(path, rows.state(), *ranks, replacing(&files));
  }
  const std::shared_ptr<FileSystem> disk = make_posix_file_system();
  EventfulFileSystem files;
  const std::unique_ptr<RankGroup> ranks = single_rank();
  KilledRows rows{0, 1, 4};
};

/// Never ended, as what lies on main()'s stack.
Program& program(std::function<void()> at_write) {
  static auto* const made = new Program(std::move(at_write));
  return *made;
}

std::function<void()> pause(int ms) {
  return [ms] { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); };
}

/// The exit status of a process that does `work`, and seconds.
std::pair<int, double> in_process(const std::function<void()>& work) {
  const Clock::time_point start = Clock::now();
  const pid_t pid = ::fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    work();
    ::_exit(99);
  }
  int status = 0;
  REQUIRE(::waitpid(pid, &status, 0) == pid);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1,
          std::chrono::duration<double>(Clock::now() - start).count()};
}

int status_of(const std::function<void()>& work) { return in_process(work).first; }

}  // namespace

TEST_CASE("exit() waits for a save in the background") {
  const KilledFolder folder;
  const auto [code, seconds] = in_process([&] {
    program(pause(300)).begin(folder / "a");
    std::exit(7);
  });
  CHECK(code == 7);
  CHECK(seconds > 0.3);
  CHECK(content_of(folder / "a", 1) == 4);
}

TEST_CASE("exit() waits for a lazy save of what was made after the first save") {
  const KilledFolder folder;
  const int code = status_of([&] {
    Program& mine = program([] {});
    mine.begin(folder / "a").wait();
    static std::vector<float> late(4 << 20, 7);
    static const struct Spoil {
      ~Spoil() {
        std::ranges::fill(late, -1.0f);
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
      }
    } spoil;
    LiveState state;
    state.add("late", {DType::kFloat32, {4 << 20}, {}, late.data()});
    state.changed = [] { return std::string(); };
    SaveOptions options;
    options.snapshot = SnapshotTiming::kLazy;
    save_async(folder / "b", state, *mine.ranks, options);
    std::exit(0);
  });
  CHECK(code == 0);
  std::vector<float> found(4 << 20);
  LiveState state;
  state.add("late", {DType::kFloat32, {4 << 20}, {}, found.data()});
  const auto ranks = single_rank();
  load(folder / "b", state, *ranks);
  CHECK(std::ranges::count(found, 7.0f) == 4 << 20);
}

TEST_CASE(
    "exit() does not wait for a save that is over, nor in a forked child or a thread that saves") {
  if (testing::kSanitized) return;  // they stop the process in a child of many threads
  const KilledFolder folder;
  const auto [after, quick] = in_process([&] {
    program([] {}).begin(folder / "b").wait();
    std::exit(3);
  });
  CHECK(after == 3);
  CHECK(quick < 2);
  const int code = status_of([&] {
    PendingSave pending = program(pause(1500)).begin(folder / "c");
    const auto [child, took] = in_process([] { std::exit(5); });
    pending.wait();
    std::exit(child == 5 && took < 1 ? 0 : 1);
  });
  CHECK(code == 0);
  CHECK(content_of(folder / "c", 1) == 4);
  const int group = status_of([&] {  // whose child ends the group as well
    auto ranks = single_rank();
    Program& mine = program(pause(1500));
    PendingSave pending =
        save_async(folder / "e", mine.rows.state(), *ranks, replacing(&mine.files));
    const auto [child, took] = in_process([&] {
      bool told = false;
      try {
        pending.wait();
      } catch (const Error& error) {
        told = std::string(error.what()).find("forked") != std::string::npos;
      }
      ranks.reset();
      std::exit(told ? 5 : 6);
    });
    pending.wait();
    std::exit(child == 5 && took < 1 ? 0 : 1);
  });
  CHECK(group == 0);
  CHECK(content_of(folder / "e", 1) == 4);
  const int within = status_of([&] {
    program([] { std::exit(6); }).begin(folder / "d");
    std::this_thread::sleep_for(std::chrono::seconds(10));
  });
  CHECK(within == 6);
}

}  // namespace live_exit_test
