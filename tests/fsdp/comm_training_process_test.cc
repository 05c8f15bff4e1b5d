// Training in real processes: a rank that is killed or stopped at any collective of a step is
// noticed by all others in time.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>

#include "tests/fsdp/comm_processes.h"
#include "tests/fsdp/models.h"
#include "tests/fsdp/torch_and_catch.h"

using namespace tessera;
using namespace tessera::fsdp;
using namespace tessera::fsdp::test;
using namespace tessera::fsdp::testing;
using Clock = std::chrono::steady_clock;

namespace {

constexpr int kCollectives =
    9;  // of a step of two blocks and a root: 5 gathers, 3 reductions, a check

int number(const char* name) { return std::atoi(std::getenv(name)); }

/// Trains until something fails, and reports how many milliseconds that took.
void play() {
  WorldOptions world_options;
  world_options.timeout = std::chrono::milliseconds(number("TESSERA_TIMEOUT_MS"));
  World world = init_from_env(world_options);
  Net net = make_net(2, 6, 7, 3);
  Options options;
  options.mesh = world.mesh();
  shard(net, options);
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-2));
  const Data data = part_of(make_data(6, 6, 3), world.rank(), world.size());
  const auto comm = world.communicator();
  auto step = [&] {
    optimizer.zero_grad();
    torch::mse_loss(net->forward(data.x), data.y).backward();
    optimizer.step();
  };
  step();
  int seen = 0;
  if (world.rank() == number("TESSERA_VICTIM"))
    comm->observe([&](const CommRecord&) {
      if (seen++ == number("TESSERA_AT")) kill(getpid(), number("TESSERA_SIGNAL"));
    });
  const auto start = Clock::now();
  try {
    while (true) step();
  } catch (const Error& error) {
    const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start);
    report(fmt::format("{} {}", took.count(), error.what()));
  }
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
  for (int rank = 0; rank < 3; ++rank) {
    if (rank == victim) continue;
    const RankResult& result = results[static_cast<std::size_t>(rank)];
    INFO(result.report);
    CHECK_FALSE(result.killed);
    REQUIRE(!result.report.empty());
    CHECK(std::isdigit(static_cast<unsigned char>(result.report[0])));
    CHECK(std::atoi(result.report.c_str()) <= most_ms);
  }
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
