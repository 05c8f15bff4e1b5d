// Training in real processes: a rank that is killed or stopped at any collective of a step is
// noticed by all others in time.
#include <signal.h>
#include <unistd.h>

#include "tests/fsdp/comm_small_job.h"

namespace comm_training_process_test {

using namespace tessera;
using namespace tessera::fsdp;
using namespace tessera::fsdp::test;
using namespace tessera::fsdp::testing;

namespace {

constexpr int kCollectives =
    9;  // of a step of two blocks and a root: 5 gathers, 3 reductions, a check

/// Trains until something fails, and reports how many milliseconds that took.
void play() {
  WorldOptions world_options;
  world_options.timeout = std::chrono::milliseconds(number("TESSERA_TIMEOUT_MS"));
  World world = init_from_env(world_options);
  SmallJob job(world);
  job.step();
  int seen = 0;
  if (world.rank() == number("TESSERA_VICTIM"))
    world.communicator()->observe([&](const CommRecord&) {
      if (seen++ == number("TESSERA_AT")) kill(getpid(), number("TESSERA_SIGNAL"));
    });
  report_outcome([&] {
    while (true) job.step();
  });
}

void check(int signal, int at, int victim, int timeout_ms, int most_ms) {
  CAPTURE(signal, at, victim);
  ProcessJob job{.size = 3, .scenario = "train"};
  job.test = "a rank that trains";
  job.environment = {{"TESSERA_VICTIM", std::to_string(victim)},
                     {"TESSERA_AT", std::to_string(at)},
                     {"TESSERA_SIGNAL", std::to_string(signal)},
                     {"TESSERA_TIMEOUT_MS", std::to_string(timeout_ms)}};
  if (signal == SIGSTOP) job.stopped = {victim};
  const auto results = run_processes(job);
  check_others(results, victim, most_ms);
}

}  // namespace

TEST_CASE("a rank that trains", "[.]") { play(); }

TEST_CASE("a rank killed in a step is noticed by all within five seconds") {
  for (const int at : {1, 5, 6, 8}) check(SIGKILL, at, 1 + at % 2, 20000, 5000);
}

TEST_CASE("a rank stopped in a step is noticed by all two seconds after the timeout") {
  for (const int at : {4, 7}) check(SIGSTOP, at, 1 + at % 2, 4000, 4000 + 2000);
}

// Minutes: every collective of a step, often.
TEST_CASE("a rank killed or stopped at any collective of a step is noticed by all", "[.soak]") {
  int kills = 0;
  for (int round = 0; round < 6; ++round)
    for (int at = 0; at < kCollectives; ++at)
      for (const int signal : {SIGKILL, SIGSTOP}) {
        check(signal, at, 1 + (at + round) % 2, 4000, signal == SIGKILL ? 5000 : 6000);
        ++kills;
      }
  WARN(fmt::format("{} ranks killed or stopped", kills));
}

}  // namespace comm_training_process_test
