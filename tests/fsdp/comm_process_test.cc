// Gloo among real processes: what a launcher's variables make, and what survivors see of a death.
#include <signal.h>
#include <stdlib.h>
#include <tessera/live/load.h>
#include <tessera/live/save.h>
#include <torch/torch.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "tests/fsdp/comm_processes.h"
#include "tests/fsdp/comm_sums.h"
#include "tests/fsdp/comm_support.h"
#include "tests/fsdp/machine_stall.h"

namespace comm_process_test {

using namespace tessera;
using namespace tessera::fsdp;
using namespace tessera::fsdp::testing;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

namespace {

int number(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text ? std::stoi(text) : otherwise;
}

/// A training step's mix of collectives, forever.
void step(World& world) {
  const auto comm = world.communicator();
  at::Tensor part = at::ones({5000}), whole = at::zeros({5000 * world.size()});
  comm->all_gather_into(whole, part, kForward);
  comm->all_gather_into(whole, part, kBackward);
  comm->reduce_scatter_into(part, whole, Reduce::kAverage, kBackward);
  sum_once(world, {"", CommPhase::kOptimizer});
  require(part[0].item<float>() == 1.0f, "wrong average");
}

/// Steps until something fails; reports how long the failing call took, and its message.
void report_failure_of_steps(World& world) {
  while (true) {
    const auto start = Clock::now();
    try {
      step(world);
    } catch (const Error& error) {
      const auto took =
          std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start).count();
      report(std::to_string(took) + " " + error.what());
      return;
    }
  }
}

void play_collectives(World& world) {
  for (int i = 0; i < 20; ++i) step(world);
  world.ranks().barrier();
  report("ok " + std::string(world.communicator()->backend()) + " " +
         std::to_string(world.local_rank()));
}

void play_death(World& world) {
  step(world);
  if (world.rank() == number("TESSERA_VICTIM", 0)) {
    std::thread([signal = number("TESSERA_SIGNAL", SIGKILL)] {
      std::this_thread::sleep_for(std::chrono::milliseconds(number("TESSERA_AFTER_MS", 100)));
      kill(getpid(), signal);
    }).detach();
  }
  report_failure_of_steps(world);
}

/// One stops, then another one is killed, while all train.
void play_death_beside_stopped(World& world) {
  step(world);
  if (world.rank() == 1) kill(getpid(), SIGSTOP);
  if (world.rank() == 2) {
    std::this_thread::sleep_for(300ms);
    kill(getpid(), SIGKILL);
  }
  report_failure_of_steps(world);
}

/// One has ended its world; the others go on among themselves for longer than it is waited for.
void play_early(World& world) {
  step(world);
  if (world.rank() == number("TESSERA_VICTIM", 0)) return report("ok");
  std::vector<int> others;
  for (int rank = 0; rank < world.size(); ++rank)
    if (rank != number("TESSERA_VICTIM", 0)) others.push_back(rank);
  const auto group = world.group(others);
  at::Tensor sum = at::ones({5});
  for (const auto start = Clock::now(); Clock::now() - start < 5s;) {
    std::this_thread::sleep_for(50ms);
    group->all_reduce(sum, Reduce::kAverage, kBackward);
  }
  report("ok");
}

void play_throw(World& world) {
  step(world);
  const auto start = Clock::now();
  std::string text;
  try {
    if (world.rank() == 1) {
      world.communicator()->abort("backward of unit \"layers.2\": bad value");
      fail(Code::kInvalidArgument, "bad value");
    }
    sum_once(world, kBackward);
  } catch (const Error& error) {
    text = error.what();
  }
  const bool quick = Clock::now() - start < 2s;
  world.reset();
  step(world);
  report((quick ? "quick " : "slow ") + text);
}

void play_uncaught(World& world) {
  step(world);
  if (world.rank() == 1) throw std::runtime_error("out of main");
  const auto start = Clock::now();
  try {
    step(world);
  } catch (const Error& error) {
    report((Clock::now() - start < 2s ? "quick " : "slow ") + std::string(error.what()));
  }
}

LiveState rows_of(const World& world, at::Tensor& rows) {
  LiveState state;
  state.add_piece("w", {DType::kFloat32, {world.size() * 100, 8}},
                  {Chunk::whole_of({{world.rank() * 100, 0}, {100, 8}}), rows.data_ptr(), {}});
  return state;
}

void play_save(World& world) {
  const std::string path = std::string(std::getenv("TESSERA_FOLDER")) + "/a";
  at::Tensor rows = at::full({100, 8}, world.rank() + 1.0);
  PendingSave pending = save_async(path, rows_of(world, rows), world.ranks());
  for (int i = 0; i < 10; ++i) step(world);
  pending.wait();
  rows.zero_();
  load(path, rows_of(world, rows), world.ranks());
  require(rows.eq(world.rank() + 1).all().item<bool>(), "other rows");
  report("ok");
}

/// Saves in the background until a peer is gone.
void play_save_death(World& world) {
  const std::string folder = std::getenv("TESSERA_FOLDER");
  at::Tensor rows = at::full({100, 8}, 1.0);
  save(folder + "/before", rows_of(world, rows), world.ranks());
  if (world.rank() == 1) {
    std::thread([] {
      std::this_thread::sleep_for(200ms);
      kill(getpid(), SIGKILL);
    }).detach();
  }
  for (int n = 0;; ++n) {
    const auto start = Clock::now();
    try {
      save_async(folder + "/step_" + std::to_string(n), rows_of(world, rows), world.ranks()).wait();
    } catch (const Error& error) {
      const auto took =
          std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start).count();
      report(std::to_string(took) + " " + error.what());
      return;
    }
  }
}

/// A rank is stopped or killed; the others meet for a new generation.
void play_reset_alone(World& world) {
  step(world);
  world.ranks().barrier();
  if (world.rank() == number("TESSERA_VICTIM", 0))
    kill(getpid(), number("TESSERA_SIGNAL", SIGSTOP));
  std::this_thread::sleep_for(200ms);
  const auto start = Clock::now();
  try {
    world.reset();
  } catch (const Error& error) {
    const auto took =
        std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start).count();
    report(std::to_string(took) + " " + error.what());
  }
}

void play() {
  WorldOptions options;
  options.timeout = std::chrono::milliseconds(number("TESSERA_TIMEOUT_MS", 20000));
  options.join_timeout = std::chrono::milliseconds(number("TESSERA_JOIN_MS", 20000));
  if (scenario() == "absent" && number("RANK", 0) == 1) return;
  try {
    World world = init_from_env(options);
    if (scenario() == "collectives") play_collectives(world);
    if (scenario() == "death") play_death(world);
    if (scenario() == "throw") play_throw(world);
    if (scenario() == "save") play_save(world);
    if (scenario() == "save_death") play_save_death(world);
    if (scenario() == "reset_alone") play_reset_alone(world);
    if (scenario() == "uncaught") play_uncaught(world);
    if (scenario() == "death_beside_stopped") play_death_beside_stopped(world);
    if (scenario() == "early") play_early(world);
    if (scenario() == "in_a_row") {
      for (int n = 0; n < 12; ++n) {
        world = World();
        world = init_from_env(options);
        step(world);
      }
      report("ok");
    }
    if (scenario() == "twice") {
      step(world);
      World second = init_from_env(options);
      step(second);
      step(world);
      report("ok");
    }
  } catch (const Error& error) {
    report(std::string("init: ") + error.what());
  } catch (const std::exception& error) {
    report(std::string("other: ") + error.what());
  }
}

void contains(const std::string& text, const std::string& part) {
  INFO(text);
  CHECK(text.find(part) != std::string::npos);
}

int leading_number(const std::string& text) { return text.empty() ? -1 : std::atoi(text.c_str()); }

/// A survivor ended by itself, and what it waited for failed in time.
void check_noticed(const RankResult& result, long long most_ms) {
  INFO(result.report);
  CHECK_FALSE(result.killed);
  CHECK(leading_number(result.report) >= 0);
  CHECK(leading_number(result.report) < most_ms);
}

}  // namespace

TEST_CASE("a rank of a job", "[.]") { play(); }

TEST_CASE("processes under a launcher's variables run every collective") {
  for (const int size : {1, 2, 4}) {
    ProcessJob job{.size = size, .scenario = "collectives"};
    for (const auto& result : run_processes(job)) {
      CHECK(result.exit_code == 0);
      contains(result.report, size == 1 ? "ok single" : "ok gloo");
    }
  }
}

TEST_CASE("with a launcher's store rank 0 is a client like the others") {
  const int port = free_port();
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.isServer = true;
  options.waitWorkers = false;
  const auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  // The second job finds the keys of the first: a restart by the launcher counts attempts.
  for (const char* attempt : {"0", "1"}) {
    ProcessJob job{.size = 3, .scenario = "collectives"};
    job.environment = {{"MASTER_PORT", std::to_string(port)},
                       {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                       {"TORCHELASTIC_RESTART_COUNT", attempt}};
    for (const auto& result : run_processes(job)) {
      CHECK(result.exit_code == 0);
      contains(result.report, "ok gloo");
    }
  }
}

TEST_CASE("a process may make its world twice") {
  for (const auto& result : run_processes({.size = 2, .scenario = "twice"}))
    CHECK(result.report == "ok");
}

TEST_CASE("processes may make and end worlds in a row") {
  for (const auto& result : run_processes({.size = 3, .scenario = "in_a_row"}))
    CHECK(result.report == "ok");
}

TEST_CASE("a rank that has ended its world is not taken for one that is gone") {
  for (const char* leaves : {"0", "2"}) {
    ProcessJob job{.size = 3, .scenario = "early", .environment = {{"TESSERA_VICTIM", leaves}}};
    for (const auto& result : run_processes(job)) CHECK(result.report == "ok");
  }
}

TEST_CASE("a rank that is stopped does not keep the death of another from the others") {
  ProcessJob job{.size = 4, .scenario = "death_beside_stopped", .stopped = {1}};
  const fsdp::test::MachineStall stall;
  const auto results = run_processes(job);
  INFO("the machine held this process back for " << stall.ms() << " ms");
  for (const int rank : {0, 3}) {
    check_noticed(results[rank], 5000 + stall.ms());
    contains(results[rank].report, "rank 2 is gone");
  }
}

TEST_CASE("a killed rank is noticed by all within five seconds and named") {
  for (int victim = 0; victim < 3; ++victim) {
    const std::string after = std::to_string(30 + 17 * victim);
    INFO("rank " << victim << " is killed after " << after << " ms");
    ProcessJob job{.size = 3, .scenario = "death"};
    job.environment = {{"TESSERA_VICTIM", std::to_string(victim)}, {"TESSERA_AFTER_MS", after}};
    const auto results = run_processes(job);
    CHECK(results[victim].signal == SIGKILL);
    for (int rank = 0; rank < 3; ++rank) {
      CHECK_FALSE(results[rank].killed);
      if (rank == victim) continue;
      CHECK(results[rank].exit_code == 0);
      INFO(results[rank].report);
      CHECK(leading_number(results[rank].report) >= 0);
      CHECK(leading_number(results[rank].report) < 5000);
      contains(results[rank].report, "i/o error");
      contains(results[rank].report, "group \"world\"");
      // Where rank 0 dies, the store dies with it.
      contains(results[rank].report, victim == 0 ? "the store" : "no answer from rank");
    }
  }
}

TEST_CASE("a stopped rank is noticed by all two seconds after the timeout at the latest") {
  for (const int victim : {0, 2}) {
    INFO("rank " << victim << " is stopped");
    ProcessJob job{.size = 3, .scenario = "death", .stopped = {victim}};
    job.environment = {{"TESSERA_VICTIM", std::to_string(victim)},
                       {"TESSERA_SIGNAL", std::to_string(SIGSTOP)},
                       {"TESSERA_TIMEOUT_MS", "1500"}};
    const fsdp::test::MachineStall stall;
    const auto results = run_processes(job);
    INFO("the machine held this process back for " << stall.ms() << " ms");
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == victim) continue;
      check_noticed(results[rank], 3500 + stall.ms());
    }
  }
}

TEST_CASE("ranks that meet anew do not wait for a store that hangs beyond the timeout") {
  ProcessJob job{.size = 3, .scenario = "reset_alone", .stopped = {0}};
  job.environment = {{"TESSERA_TIMEOUT_MS", "3000"}};
  const fsdp::test::MachineStall stall;
  const auto results = run_processes(job);
  INFO("the machine held this process back for " << stall.ms() << " ms");
  for (const int rank : {1, 2}) {
    CHECK_FALSE(results[rank].killed);
    INFO(results[rank].report);
    CHECK(leading_number(results[rank].report) >= 2500);
    CHECK(leading_number(results[rank].report) < 8000 + stall.ms());
    contains(results[rank].report, "the store");
  }
}

TEST_CASE("ranks that meet anew without a rank that was killed name it within five seconds") {
  for (const int victim : {0, 1, 2}) {
    ProcessJob job{.size = 3, .scenario = "reset_alone"};
    job.environment = {{"TESSERA_VICTIM", std::to_string(victim)},
                       {"TESSERA_SIGNAL", std::to_string(SIGKILL)}};
    const fsdp::test::MachineStall stall;
    const auto results = run_processes(job);
    INFO("the machine held this process back for " << stall.ms() << " ms");
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == victim) continue;
      check_noticed(results[rank], 5000 + stall.ms());
      if (victim != 0)
        contains(results[rank].report, "rank " + std::to_string(victim) + " is gone");
    }
  }
}

TEST_CASE("a rank that aborts is named by all and the world goes on after reset") {
  const auto results = run_processes({.size = 4, .scenario = "throw"});
  for (int rank = 0; rank < 4; ++rank) {
    CHECK(results[rank].exit_code == 0);
    contains(results[rank].report, "quick ");
    contains(results[rank].report,
             rank == 1 ? "bad value" : "rank 1 failed: backward of unit \"layers.2\"");
    if (rank != 1) CHECK(results[rank].report == results[rank == 0 ? 2 : 0].report);
  }
}

TEST_CASE("a rank that leaves with an exception fails the others at once") {
  const auto results = run_processes({.size = 3, .scenario = "uncaught"});
  CHECK(results[1].report == "other: out of main");
  for (const int rank : {0, 2}) contains(results[rank].report, "quick ");
  for (const int rank : {0, 2}) contains(results[rank].report, "rank 1 left with an exception");
}

TEST_CASE("a rank that never joins is named when the time for joining is over") {
  ProcessJob job{.size = 3, .scenario = "absent"};
  // The other two may start seconds apart on a busy machine.
  job.environment = {{"TESSERA_JOIN_MS", "5000"}};
  const auto results = run_processes(job);
  for (const int rank : {0, 2})
    contains(results[rank].report, "rank 1 did not join group \"the world\" within 5000 ms");
}

namespace {

class SaveFolder {
 public:
  SaveFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "tessera-save-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~SaveFolder() { std::filesystem::remove_all(path); }
  std::string path;
};

}  // namespace

TEST_CASE("processes save in the background while they train, and load what they saved") {
  const SaveFolder folder;
  ProcessJob job{.size = 3, .scenario = "save", .environment = {{"TESSERA_FOLDER", folder.path}}};
  for (const RankResult& result : run_processes(job)) CHECK(result.report == "ok");
}

TEST_CASE("a process killed while it saves: survivors report, the save before is whole") {
  const SaveFolder folder;
  ProcessJob job{
      .size = 3, .scenario = "save_death", .environment = {{"TESSERA_FOLDER", folder.path}}};
  const auto results = run_processes(job);
  CHECK(results[1].signal == SIGKILL);
  for (const int survivor : {0, 2}) {
    check_noticed(results[survivor], 5000);
  }
  at::Tensor whole = at::zeros({300, 8});
  LiveState state;
  state.add("w", {DType::kFloat32, {300, 8}, {}, whole.data_ptr()});
  load(folder.path + "/before", state, *single_rank());
  CHECK(whole.eq(1).all().item<bool>());
}

}  // namespace comm_process_test
