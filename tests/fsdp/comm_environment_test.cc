// init_from_env without a launcher, and with variables that cannot be right.
#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>

#include "tests/fsdp/comm_support.h"

namespace comm_environment_test {

using namespace tessera;
using namespace tessera::fsdp;

namespace {

/// Sets variables for one scope and brings back what was there.
class Environment {
 public:
  explicit Environment(const std::map<std::string, std::string>& variables) {
    for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}) {
      const char* value = std::getenv(name);
      before_[name] = value ? std::optional<std::string>(value) : std::nullopt;
      unsetenv(name);
    }
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  }
  ~Environment() {
    for (const auto& [name, value] : before_)
      if (value)
        setenv(name.c_str(), value->c_str(), 1);
      else
        unsetenv(name.c_str());
  }

 private:
  std::map<std::string, std::optional<std::string>> before_;
};

using Variables = std::map<std::string, std::string>;

Variables good() {
  return {{"RANK", "0"},
          {"WORLD_SIZE", "1"},
          {"LOCAL_RANK", "0"},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", "29400"}};
}

void refuse(const Variables& variables, const std::string& part) {
  const Environment environment(variables);
  try {
    init_from_env();
    FAIL("accepted; expected: " << part);
  } catch (const Error& error) {
    INFO(error.what());
    CHECK(error.code() == Code::kInvalidArgument);
    CHECK(std::string(error.what()).find(part) != std::string::npos);
  }
}

}  // namespace

TEST_CASE("without a launcher the world is this process alone") {
  const Environment environment({});
  World world = init_from_env();
  CHECK(world.rank() == 0);
  CHECK(world.size() == 1);
  CHECK(world.local_rank() == 0);
  CHECK(world.communicator()->backend() == "single");
  CHECK(world.ranks().size() == 1);
  world.ranks().barrier();
  CHECK(world.mesh().size(0) == 1);
  const auto before = world.communicator();
  world.reset();
  CHECK(world.generation() == 1);
  CHECK(world.communicator() != before);
  world.communicator()->barrier({});
  CHECK_THROWS_AS(before->barrier({}), Error);
}

TEST_CASE("one rank under a launcher needs no peers and no port") {
  auto variables = good();
  variables["LOCAL_RANK"] = "3";
  const Environment environment(variables);
  const World world = init_from_env();
  CHECK(world.size() == 1);
  CHECK(world.local_rank() == 3);
}

TEST_CASE("each missing variable is named together with those that are set") {
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    auto variables = good();
    variables.erase(name);
    refuse(variables, std::string("environment variable ") + name + " is missing");
  }
  refuse({{"RANK", "0"}},
         "environment variables WORLD_SIZE, MASTER_ADDR, MASTER_PORT are missing, but RANK is set");
  refuse({{"LOCAL_RANK", "0"}}, "but LOCAL_RANK is set");
}

TEST_CASE("numbers that make no sense are refused with their name and range") {
  const auto with = [](const std::string& name, const std::string& value) {
    auto variables = good();
    variables[name] = value;
    return variables;
  };
  refuse(with("RANK", "one"), "RANK is \"one\"; it must be 0..0");
  refuse(with("RANK", "1"), "RANK is \"1\"; it must be 0..0");
  refuse(with("RANK", "-1"), "RANK is \"-1\"");
  refuse(with("RANK", "0x0"), "RANK is \"0x0\"");
  refuse(with("WORLD_SIZE", "0"), "WORLD_SIZE is \"0\"");
  refuse(with("WORLD_SIZE", "99999999999"), "WORLD_SIZE is");
  refuse(with("MASTER_PORT", "70000"), "MASTER_PORT is \"70000\"");
  refuse(with("MASTER_PORT", "0"), "MASTER_PORT is \"0\"");
  refuse(with("LOCAL_RANK", " 1"), "LOCAL_RANK is \" 1\"");
}

TEST_CASE("an unknown backend is refused and nccl without a GPU says so") {
  const Environment environment({});
  WorldOptions options;
  options.backend = "mpi";
  CHECK_THROWS_WITH(init_from_env(options), Catch::Contains("\"gloo\" or \"nccl\""));
  CHECK_THROWS_WITH(run_threads(
                        2, [](World&) {}, options),
                    Catch::Contains("\"threads\" or \"gloo\""));
  if (torch::cuda::is_available()) return;
  options.backend = "nccl";
  CHECK_THROWS_WITH(init_from_env(options), Catch::Contains("nccl"));
}

TEST_CASE("a rank has as long as with PyTorch for a collective and less to join") {
  CHECK(WorldOptions{}.timeout == std::chrono::minutes(10));
  CHECK(WorldOptions{}.join_timeout == std::chrono::minutes(2));
}

TEST_CASE("run_threads returns when all ranks have ended") {
  std::atomic<int> ended = 0;
  run_threads(5, [&](World& world) { ended += world.rank() + 1; });
  CHECK(ended == 15);
  CHECK_THROWS_AS(run_threads(0, [](World&) {}), Error);
}

}  // namespace comm_environment_test
