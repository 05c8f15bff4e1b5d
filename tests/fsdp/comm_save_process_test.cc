// Saving and loading in real processes: a rank that is killed at any phase is noticed by all others
// within five seconds, and the checkpoint that `latest` names is whole.
#include <signal.h>
#include <unistd.h>

#include <filesystem>

#include "tests/fsdp/comm_small_job.h"

namespace comm_save_process_test {

using namespace tessera;
using namespace tessera::fsdp;
using namespace tessera::fsdp::test;
using namespace tessera::fsdp::testing;

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

/// The new one, `latest`, and the old one away.
SaveOptions replacing() {
  SaveOptions options;
  options.update_latest = true;
  options.keep_last = 1;
  return options;
}

/// The group of saves in the background: the victim is there when it is begun, and dies while the
/// others connect to it.
void connect_or_die(World& world) {
  if (number("TESSERA_VICTIM") != world.rank()) {
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
  const std::string run = std::getenv("TESSERA_RUN");
  SmallJob job(world);
  job.step();
  if (scenario() != "load") job.step();
  DeadlyRanks ranks(world.ranks(),
                    number("TESSERA_VICTIM") == world.rank() ? number("TESSERA_AT") : 0);
  report_outcome([&] {
    if (scenario() == "save") save(run + "/step_2", job.state(), ranks, replacing());
    if (scenario() == "async") save_async(run + "/step_2", job.state(), ranks, replacing()).wait();
    if (scenario() == "load") load(run, job.state(), ranks);
    if (scenario() == "connect") connect_or_die(world);
  });
}

class Run {
 public:
  Run() {
    std::string name = (std::filesystem::temp_directory_path() / "tessera-run-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp");
    path_ = name;
    run_threads(kRanks, [&](World& world) {
      SmallJob job(world);
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
      SmallJob job(world), expected(world);
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
  check_others(results, victim, died ? 5000 : 0);
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

}  // namespace comm_save_process_test
