// Resharding every sample to other world sizes keeps its content.
#include <catch2/catch.hpp>

#include "tests/support/cli_oracle.h"
#include "tests/support/run_command.h"

namespace samples_reshard_test {

using namespace tessera::testing;

namespace {

void check_group(const std::string& group, const std::vector<int>& world_sizes) {
  for (const OracleCase& one : oracle_cases({group})) {
    if (one.refuse || one.nameless) continue;
    for (const int world_size : world_sizes) {
      const TemporaryFolder t;
      const CommandResult done =
          reshard({one.path, t / "out", "--world-size", std::to_string(world_size)});
      INFO(one.name << " to " << world_size << ": " << done.err);
      CHECK(done.exit == 0);
      if (done.exit != 0) continue;
      CHECK(t.names() == std::vector<std::string>{"out"});
      for (const std::string& difference : tensor_differences(one, t / "out"))
        FAIL_CHECK(difference);
    }
  }
}

}  // namespace

TEST_CASE("torch-dcp samples reshard to 1, 2, 3, 5 and 16 ranks") {
  check_group("dcp", {1, 2, 3, 5, 16});
}
TEST_CASE("torch-dcp samples of older PyTorch reshard") { check_group("dcp-old", {1, 3, 16}); }
TEST_CASE("OLMo-core samples reshard") { check_group("olmo-core", {1, 2, 3, 5, 16}); }

}  // namespace samples_reshard_test
