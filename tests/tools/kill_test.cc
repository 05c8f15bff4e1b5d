// Kills at random points of saves and of reshards, and signals: what is visible afterwards is the
// old checkpoint or the new one, what was acknowledged is there, and the next run needs nobody's
// help. SIGKILL leaves the page cache, so that these say nothing about power cuts
// (tests/ops/power_cut_test.cc does).
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <tessera/live/load.h>
#include <tessera/live/save.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>

#include "tests/support/run_command.h"

namespace kill_test {

using namespace tessera;
using namespace tessera::testing;

namespace {

namespace stdfs = std::filesystem;
using Clock = std::chrono::steady_clock;
using Tree = std::map<std::string, std::string>;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

Tree tree_of(const std::string& path) {
  Tree tree;
  if (!stdfs::exists(path)) return tree;
  for (const auto& entry : stdfs::recursive_directory_iterator(path)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream in(entry.path(), std::ios::binary);
    tree[stdfs::relative(entry.path(), path)].assign(std::istreambuf_iterator<char>(in), {});
  }
  return tree;
}

bool has_leftovers(const std::string& folder) {
  for (const auto& entry : stdfs::directory_iterator(folder))
    if (entry.path().filename().string().starts_with(".")) return true;
  return false;
}

constexpr std::int64_t kNumel = 6000;

LiveState state_of(std::vector<float>& memory) {
  LiveState state;
  for (int i = 0; i < 3; ++i)
    state.add("w" + std::to_string(i),
              {DType::kFloat32, {kNumel / 3}, {}, memory.data() + i * (kNumel / 3)});
  return state;
}

void save_value(const std::string& path, float value, bool in_a_run = false) {
  std::vector<float> memory(kNumel, value);
  SaveOptions options;
  options.force = true;
  options.update_latest = in_a_run;
  options.keep_last = in_a_run ? 2 : 0;
  const auto ranks = single_rank();
  save(path, state_of(memory), *ranks, options);
}

/// The value all elements have; -1 where they differ.
float load_value(const std::string& path) {
  std::vector<float> memory(kNumel, -1);
  LiveState state = state_of(memory);
  const auto ranks = single_rank();
  LoadPolicy policy;
  policy.verify = true;
  load(path, state, *ranks, policy);
  for (const float x : memory)
    if (x != memory[0]) return -1;
  return memory[0];
}

int kills_wanted(int here) {
  const char* soak = std::getenv("TESSERA_SOAK_KILLS");
  return soak != nullptr ? std::atoi(soak) : here;
}

/// Waits for `pid`, after sending it `signal` when `delay_ms` have passed and it still runs.
struct Ended {
  int status = 0;
  bool sent = false;
};
Ended end_after(pid_t pid, double delay_ms, int signal) {
  ::usleep(static_cast<useconds_t>(delay_ms * 1000));
  Ended ended;
  if (::waitpid(pid, &ended.status, WNOHANG) == pid) return ended;
  ::kill(pid, signal);
  ended.sent = true;
  const Clock::time_point start = Clock::now();
  while (::waitpid(pid, &ended.status, WNOHANG) != pid) {
    if (milliseconds_since(start) > 60'000) {
      ::kill(pid, SIGKILL);
      FAIL("the process hangs after signal " << signal);
    }
    ::usleep(200);
  }
  return ended;
}

/// Starts a command with its output thrown away, or going to `out`.
pid_t start(const std::vector<std::string>& words, int out = -1) {
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  for (const int fd : {1, 2}) {
    if (out < 0) posix_spawn_file_actions_addopen(&actions, fd, "/dev/null", O_WRONLY, 0);
    if (out >= 0) posix_spawn_file_actions_adddup2(&actions, out, fd);
  }
  pid_t pid = -1;
  const int failed = posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  REQUIRE(failed == 0);
  return pid;
}

int run_to_end(const std::vector<std::string>& words) {
  int status = 0;
  ::waitpid(start(words), &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/// Two checkpoints, and what each is as `out`: the versions between which a run may be cut.
struct Scene {
  QuickFolder folder;
  std::array<std::string, 2> sources{folder / "a", folder / "b"};
  std::string out = folder / "work/out";
  std::array<Tree, 2> results;
  double run_ms = 0;

  Scene() {
    stdfs::create_directory(folder / "work");
    for (int i = 0; i < 2; ++i) {
      save_value(sources[static_cast<std::size_t>(i)], static_cast<float>(i + 1));
      const Clock::time_point start = Clock::now();
      REQUIRE(run_to_end(words(i)) == 0);
      run_ms = milliseconds_since(start);
      results[static_cast<std::size_t>(i)] = tree_of(out);
      REQUIRE(load_value(out) == static_cast<float>(i + 1));
    }
    REQUIRE(results[0] != results[1]);
  }
  std::vector<std::string> words(int source) const {
    return {built("ckpt-reshard"),
            sources[static_cast<std::size_t>(source)],
            out,
            "--world-size",
            "3",
            "--force",
            "--threads",
            "1"};
  }
  /// Which version `out` is; -1 for none of them.
  int version() const {
    const Tree now = tree_of(out);
    return now == results[0] ? 0 : now == results[1] ? 1 : -1;
  }
};

}  // namespace

TEST_CASE("reshards killed at random points leave the old checkpoint or the new one", "[kills]") {
  const int wanted = kills_wanted(300);
  Scene scene;
  std::mt19937_64 random(3);
  int kills = 0, staged = 0, finished = 0, replaced = 0;
  int shown = 1;
  double longest_ms = scene.run_ms;
  for (int round = 0; kills < wanted; ++round) {
    REQUIRE(round < wanted * 4);
    const int next = 1 - shown;
    const double delay = static_cast<double>(random() % 10'000) / 10'000 * longest_ms;
    const Clock::time_point began = Clock::now();
    const Ended ended = end_after(start(scene.words(next)), delay, SIGKILL);
    const bool killed = WIFSIGNALED(ended.status);
    INFO("seed 3, round " << round << ", killed " << killed);
    if (!killed) {
      REQUIRE(WEXITSTATUS(ended.status) == 0);
      longest_ms = 0.9 * longest_ms + 0.1 * milliseconds_since(began);
      ++finished;
    }
    const int now = scene.version();
    REQUIRE(now >= 0);                  // never a mix
    if (!killed) REQUIRE(now == next);  // what exit 0 acknowledged is there
    kills += killed;
    if (killed && has_leftovers(scene.folder / "work")) ++staged;
    if (killed && now == next) ++replaced;
    shown = now;
  }
  REQUIRE(run_to_end(scene.words(1 - shown)) == 0);
  CHECK(load_value(scene.out) == static_cast<float>(2 - shown));
  CHECK_FALSE(has_leftovers(scene.folder / "work"));
  fmt::print(
      "killed reshards: {} SIGKILLs (seed 3), {} while a stage was there, {} after the swap, {} "
      "runs "
      "ended first; 0 mixes, 0 lost, 0 repairs by hand\n",
      kills, staged, replaced, finished);
  REQUIRE(kills >= wanted);
  REQUIRE(staged > wanted / 20);
}

namespace {

/// Saves step after step, telling each through `acks` once save() has returned.
[[noreturn]] void train(const std::string& run, std::int32_t step, int acks) {
  try {
    for (;; ++step) {
      save_value(run + "/step_" + std::to_string(step), static_cast<float>(step), true);
      if (::write(acks, &step, sizeof step) != sizeof step) ::_exit(1);
    }
  } catch (...) {
    ::_exit(1);
  }
}

}  // namespace

TEST_CASE("saves killed at random points lose nothing that was acknowledged", "[kills]") {
  const int wanted = kills_wanted(300);
  const QuickFolder folder;
  const std::string run = folder / "run";
  std::mt19937_64 random(5);
  int kills = 0, between = 0, advanced = 0;
  std::int32_t newest = 0;
  save_value(run + "/step_0", 0, true);
  for (; kills < wanted; ++kills) {
    int acks[2];
    REQUIRE(::pipe(acks) == 0);
    const pid_t pid = ::fork();
    REQUIRE(pid >= 0);
    if (pid == 0) train(run, newest + 1, acks[1]);
    ::close(acks[1]);
    const Ended ended = end_after(pid, static_cast<double>(random() % 4000) / 1000, SIGKILL);
    INFO("seed 5, kill " << kills);
    REQUIRE(WIFSIGNALED(ended.status));  // the job never fails by itself
    std::int32_t acked = newest;
    for (std::int32_t step = 0; ::read(acks[0], &step, sizeof step) == sizeof step;) acked = step;
    ::close(acks[0]);
    const float found = load_value(run);  // what `latest` names
    REQUIRE((found == static_cast<float>(acked) || found == static_cast<float>(acked + 1)));
    REQUIRE(load_value(run + "/step_" + std::to_string(acked)) == static_cast<float>(acked));
    between += has_leftovers(run);
    advanced += acked > newest;
    newest = static_cast<std::int32_t>(found);
  }
  save_value(run + "/step_" + std::to_string(newest + 1), static_cast<float>(newest + 1), true);
  CHECK(load_value(run) == static_cast<float>(newest + 1));
  CHECK_FALSE(has_leftovers(run));
  fmt::print(
      "killed saves: {} SIGKILLs (seed 5), {} inside of a save, {} steps saved; 0 wrong loads, 0 "
      "acknowledged saves lost, 0 repairs by hand\n",
      kills, between, newest);
  REQUIRE(kills >= wanted);
  REQUIRE(between > wanted / 20);
  REQUIRE(advanced > 0);
}

TEST_CASE("signals at random points leave no output or all of it", "[kills]") {
  constexpr int kEach = 70;
  Scene scene;
  std::mt19937_64 random(7);
  std::map<int, std::map<int, int>> ends;  // signal -> exit -> times
  int points = 0;
  for (const int signal : {SIGINT, SIGTERM, SIGPIPE}) {
    for (int sent = 0, round = 0; sent < kEach; ++round) {
      REQUIRE(round < kEach * 6);
      const bool force = round % 2 == 0;  // over the old one, or to a name that is free
      const int before = scene.version();
      std::vector<std::string> words = scene.words(1 - before);
      const std::string fresh = scene.folder / "work/fresh";
      if (!force) words[2] = fresh;
      int pipe[2] = {-1, -1};
      if (signal == SIGPIPE) {  // its reader goes away
        REQUIRE(::pipe(pipe) == 0);
        ::fcntl(pipe[0], F_SETFD, FD_CLOEXEC);
        words.insert(words.end(), {"--progress", "json"});
      }
      const pid_t pid = start(words, pipe[1]);
      ::close(pipe[1]);
      const double delay = static_cast<double>(random() % 10'000) / 10'000 * scene.run_ms;
      if (signal == SIGPIPE) {
        ::usleep(static_cast<useconds_t>(delay * 1000));
        ::close(pipe[0]);
      }
      const Ended ended = signal == SIGPIPE ? end_after(pid, 0, 0) : end_after(pid, delay, signal);
      const int exit =
          WIFEXITED(ended.status) ? WEXITSTATUS(ended.status) : 128 + WTERMSIG(ended.status);
      INFO("seed 7, signal " << signal << ", round " << round << ", exit " << exit);
      sent += ended.sent;
      points += ended.sent;
      ++ends[signal][exit];
      REQUIRE((exit == 0 || exit == 128 + signal));
      const int after = scene.version();
      if (force) {
        REQUIRE(after >= 0);
        if (exit == 0) REQUIRE(after == 1 - before);
        if (exit != 0 && signal != SIGPIPE) REQUIRE(after == before);
        continue;
      }
      REQUIRE(after == before);
      const Tree result = tree_of(fresh);
      if (exit == 0) REQUIRE_FALSE(result.empty());
      if (exit != 0 && signal != SIGPIPE) REQUIRE_FALSE(stdfs::exists(fresh));
      if (!result.empty()) REQUIRE(load_value(fresh) == static_cast<float>(2 - before));
      stdfs::remove_all(fresh);
    }
  }
  std::string text;
  for (const auto& [signal, counts] : ends)
    for (const auto& [exit, times] : counts)
      text += fmt::format(", {} x {} exit {}", times,
                          signal == SIGINT    ? "SIGINT"
                          : signal == SIGTERM ? "SIGTERM"
                                              : "SIGPIPE",
                          exit);
  fmt::print("signals: {} points (seed 7){}; 0 partial outputs, old intact\n", points, text);
  REQUIRE(points >= 200);
  CHECK(ends[SIGINT][130] > 0);
  CHECK(ends[SIGTERM][143] > 0);
  CHECK(ends[SIGPIPE][141] > 0);
}

}  // namespace kill_test
