#pragma once
// What a rank of a process test trains, what it reports when another one fails, and how the test
// reads that.
#include <fmt/format.h>

#include <cctype>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <vector>

#include "tests/fsdp/comm_processes.h"
#include "tests/fsdp/models.h"
#include "tests/fsdp/torch_and_catch.h"

namespace tessera::fsdp::testing {

/// Two blocks and a root over all ranks, under AdamW.
struct SmallJob {
  explicit SmallJob(World& world_) : world(world_) {
    Options options;
    options.mesh = world.mesh();
    test::shard(net, options);
    optimizer = std::make_unique<torch::optim::AdamW>(net->parameters(), 1e-2);
  }
  void step() {
    const test::Data data = test::part_of(test::make_data(6, 6, 3), world.rank(), world.size());
    optimizer->zero_grad();
    torch::mse_loss(net->forward(data.x), data.y).backward();
    optimizer->step();
  }
  LiveState state() { return state_dict(net, *optimizer); }

  World& world;
  test::Net net = test::make_net(2, 6, 7, 3);
  std::unique_ptr<torch::optim::AdamW> optimizer;
};

/// A variable of the job.
inline int number(const char* name) { return std::atoi(std::getenv(name)); }

/// Reports "done", or the milliseconds until `work` failed and with what.
template <class F>
void report_outcome(F&& work) {
  const auto start = std::chrono::steady_clock::now();
  try {
    work();
    report("done");
  } catch (const Error& error) {
    const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(
        std::chrono::steady_clock::now() - start);
    report(fmt::format("{} {}", took.count(), error.what()));
  }
}

inline void check_failed_within(const RankResult& result, int most_ms) {
  REQUIRE(!result.report.empty());
  REQUIRE(std::isdigit(static_cast<unsigned char>(result.report[0])));
  CHECK(std::atoi(result.report.c_str()) <= most_ms);
}

/// All but the victim ended by themselves: failed within `most_ms`, or done where `most_ms` is 0.
inline void check_others(const std::vector<RankResult>& results, int victim, int most_ms) {
  for (int rank = 0; rank < static_cast<int>(results.size()); ++rank) {
    if (rank == victim) continue;
    const RankResult& result = results[static_cast<std::size_t>(rank)];
    INFO(result.report);
    CHECK_FALSE(result.killed);
    if (most_ms == 0)
      CHECK(result.report == "done");
    else
      check_failed_within(result, most_ms);
  }
}

}  // namespace tessera::fsdp::testing
