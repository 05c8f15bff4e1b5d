// Saving and loading in real processes: a rank that is killed at any phase is noticed by all others
// within five seconds, and the checkpoint that `latest` names is whole.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>

#include "tests/fsdp/comm_processes.h"
#include "tests/fsdp/models.h"
#include "tests/fsdp/torch_and_catch.h"

using namespace tessera;
using namespace tessera::fsdp;
using namespace tessera::fsdp::test;
using namespace tessera::fsdp::testing;
using Clock = std::chrono::steady_clock;

namespace {

constexpr int kRanks = 3;

/// Kills this process before the n-th meeting with the other ranks, in this group or one made of
/// it.
class DeadlyRanks final : public RankGroup {
 public:
  DeadlyRanks(RankGroup& inner, int at) : inner_(inner), left_(std::make_shared<int>(at)) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> bytes) override {
    if (--*left_ == 0) kill(getpid(), SIGKILL);
    return inner_.all_gather(bytes);
  }
  std::unique_ptr<RankGroup> duplicate() override {
    auto inner = inner_.duplicate();
    auto made = std::make_unique<DeadlyRanks>(*inner, 0);
    made->left_ = left_;
    made->own_ = std::move(inner);
    return made;
  }

 private:
  RankGroup& inner_;
  std::unique_ptr<RankGroup> own_;
  std::shared_ptr<int> left_;  // one call at a time: the background begins where the caller ends
};

struct Job {
  explicit Job(World& world_) : world(world_) {
    Options options;
    options.mesh = world.mesh();
    shard(net, options);
    optimizer = std::make_unique<torch::optim::AdamW>(net->parameters(), 1e-2);
  }
  void step() {
    const Data data = part_of(make_data(6, 6, 3), world.rank(), world.size());
    optimizer->zero_grad();
    torch::mse_loss(net->forward(data.x), data.y).backward();
    optimizer->step();
  }
  LiveState state() { return state_dict(net, *optimizer); }
  World& world;
  Net net = make_net(2, 6, 7, 3);
  std::unique_ptr<torch::optim::AdamW> optimizer;
};

/// The new one, `latest`, and the old one away.
SaveOptions replacing() {
  SaveOptions options;
  options.update_latest = true;
  options.keep_last = 1;
  return options;
}

std::string variable(const char* name) { return std::getenv(name); }

/// The group of saves in the background: the victim is there when it is begun, and dies while the
/// others connect to it.
void connect_or_die(World& world) {
  if (std::stoi(variable("TESSERA_VICTIM")) != world.rank()) {
    world.ranks().duplicate();
    return;
  }
  const std::byte connecting{0};
  world.ranks().all_gather({&connecting, 1});
  kill(getpid(), SIGKILL);
}

/// Two steps, then what the scenario says; reports how many milliseconds it took to fail.
void play() {
  World world = init_from_env();
  const std::string run = variable("TESSERA_RUN");
  Job job(world);
  job.step();
  if (scenario() != "load") job.step();
  const int at = std::stoi(variable("TESSERA_AT"));
  DeadlyRanks ranks(world.ranks(), std::stoi(variable("TESSERA_VICTIM")) == world.rank() ? at : 0);
  const auto start = Clock::now();
  try {
    if (scenario() == "save") save(run + "/step_2", job.state(), ranks, replacing());
    if (scenario() == "async") save_async(run + "/step_2", job.state(), ranks, replacing()).wait();
    if (scenario() == "load") load(run, job.state(), ranks);
    if (scenario() == "connect") connect_or_die(world);
    report("done");
  } catch (const Error& error) {
    const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start);
    report(fmt::format("{} {}", took.count(), error.what()));
  }
}

class Run {
 public:
  Run() {
    std::string name = (std::filesystem::temp_directory_path() / "tessera-run-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp");
    path_ = name;
    run_threads(kRanks, [&](World& world) {
      Job job(world);
      job.step();
      save(path_ + "/step_1", job.state(), world.ranks(), replacing());
    });
  }
  ~Run() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

  /// The step of the checkpoint that the pointer names, whose every tensor is that step's.
  int whole() const {
    int found = 0;
    run_threads(1, [&](World& world) {
      Job job(world), expected(world);
      const LoadResult result = load(path_, job.state(), world.ranks());
      found = result.path.back() - '0';
      for (int step = 0; step < found; ++step) expected.step();
      for (std::size_t p = 0; p < job.net->parameters().size(); ++p)
        RANK_CHECK(
            torch::allclose(job.net->parameters()[p], expected.net->parameters()[p], 1e-4, 1e-6));
    });
    return found;
  }

 private:
  std::string path_;
};

/// False when the victim's part was over before.
bool killed(const std::string& what, int at, int victim) {
  CAPTURE(what, at, victim);
  const Run run;
  ProcessJob job;
  job.size = kRanks;
  job.scenario = what;
  job.test = "a rank that saves";
  job.environment = {{"TESSERA_VICTIM", std::to_string(victim)},
                     {"TESSERA_AT", std::to_string(at)},
                     {"TESSERA_RUN", run.path()}};
  const auto results = run_processes(job);
  const bool died = results[static_cast<std::size_t>(victim)].signal == SIGKILL;
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank == victim) continue;
    const RankResult& result = results[static_cast<std::size_t>(rank)];
    INFO(result.report);
    CHECK_FALSE(result.killed);
    REQUIRE(!result.report.empty());
    if (!died) {
      CHECK(result.report == "done");
      continue;
    }
    REQUIRE(std::isdigit(static_cast<unsigned char>(result.report[0])));
    CHECK(std::atoi(result.report.c_str()) < 5000);
  }
  const int step = run.whole();
  CHECK((step == 1 || (step == 2 && what != "load" && what != "connect")));
  if (!died) CHECK(step == (what == "load" ? 1 : 2));
  return died;
}

}  // namespace

TEST_CASE("a rank that saves", "[.]") { play(); }

TEST_CASE("a rank killed at a phase of a save or load is noticed by all within five seconds") {
  // Before the first meeting; rank 0 once it has published; in the background; while reading;
  // while the group of saves in the background connects.
  for (const auto& [what, at, victim] : {std::tuple("save", 1, 1),
                                         {"save", 10, 0},
                                         {"async", 6, 2},
                                         {"load", 7, 2},
                                         {"connect", 0, 1}})
    CHECK(killed(what, at, victim));
}

// A minute: every meeting of the ranks.
TEST_CASE("a rank killed at any meeting of a save or load is noticed by all", "[.soak]") {
  int kills = 0;
  for (const char* what : {"save", "async", "load"})
    for (const int victim : {0, 1}) {
      int at = 1;
      while (killed(what, at, victim)) ++at;
      CHECK(at > 8);
      kills += at - 1;
    }
  WARN(fmt::format("{} ranks killed", kills));
}
