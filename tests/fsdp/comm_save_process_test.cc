// Saving and loading in real processes: a rank that is killed at any phase is noticed by all others
// within five seconds, the checkpoint that `latest` names is whole, and no state is half loaded.
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <thread>

#include "tests/fsdp/comm_small_job.h"

namespace comm_save_process_test {

using namespace tessera;
using namespace tessera::fsdp;
using namespace tessera::fsdp::test;
using namespace tessera::fsdp::testing;

namespace {

constexpr int kRanks = 3;

/// Does something before the n-th meeting with the other ranks, in this group or one made of it.
class EventfulRanks final : public RankGroup {
 public:
  EventfulRanks(RankGroup& inner, int at, void (*event)())
      : inner_(inner), left_(std::make_shared<int>(at)), event_(event) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> bytes) override {
    if (--*left_ == 0) event_();
    return inner_.all_gather(bytes);
  }
  std::unique_ptr<RankGroup> duplicate() override {
    auto inner = inner_.duplicate();
    auto made = std::make_unique<EventfulRanks>(*inner, 0, event_);
    made->left_ = left_;
    made->own_ = std::move(inner);
    return made;
  }

 private:
  RankGroup& inner_;
  std::unique_ptr<RankGroup> own_;
  std::shared_ptr<int> left_;  // one call at a time: the background begins where the caller ends
  void (*event_)();
};

constexpr std::chrono::seconds kSlow{9};

void die() { kill(getpid(), SIGKILL); }
void dawdle() { std::this_thread::sleep_for(kSlow); }
void pause() { std::this_thread::sleep_for(std::chrono::seconds(1)); }

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

/// The bits of every tensor that a rank holds, moments and steps too.
using Bits = std::map<std::string, std::string>;

Bits bits_of(SmallJob& job) {
  const LiveState state = job.state();
  state.before_save();
  Bits out;
  for (const StateEntry& entry : state.dict().entries) {
    if (!entry.value.is_tensor()) continue;
    const LiveTensor& tensor = state.tensors().at(entry.value.tensor_index());
    std::string& bits = out[entry.name];
    for (const LivePiece& piece : tensor.pieces)  // dense: units are flat
      bits.append(static_cast<const char*>(piece.data),
                  static_cast<std::size_t>(piece.chunk.numel() * element_bytes(tensor.spec.dtype)));
  }
  return out;
}

/// Loads what it has not. A load that fails leaves the state as it was, or, where the killed rank
/// had come to the last meeting, all of the new one; or it says that it does not.
void load_or_die(World& world, SmallJob& job, const std::string& run, RankGroup& ranks) {
  load(run, job.state(), world.ranks());
  const Bits stored = bits_of(job);
  job.step();
  const Bits before = bits_of(job);
  LoadPolicy policy;
  policy.safety = static_cast<LoadSafety>(number("TESSERA_SAFETY"));
  try {
    load(run, job.state(), ranks, policy);
  } catch (const Error& error) {
    const Bits now = bits_of(job);
    const bool told = std::string(error.what()).find("partly filled") != std::string::npos;
    if (told ? policy.safety == LoadSafety::kAside : now != before && now != stored)
      report("half loaded: ");
    throw;
  }
  if (bits_of(job) != stored) report("other bits: ");
}

/// Two steps, then what the scenario says; reports how many milliseconds it took to fail.
void play() {
  World world = init_from_env();
  const std::string run = std::getenv("TESSERA_RUN");
  SmallJob job(world);
  for (int step = 0; step < 2; ++step) job.step();
  const bool victim = number("TESSERA_VICTIM") == world.rank();
  const bool slow = number("TESSERA_SLOW") == world.rank();
  const bool exits = scenario() == "exit";
  EventfulRanks ranks(world.ranks(), victim || slow ? number("TESSERA_AT") : 0,
                      victim  ? die
                      : exits ? pause
                              : dawdle);
  report_outcome([&] {
    if (scenario() == "save") save(run + "/step_2", job.state(), ranks, replacing());
    if (scenario() == "async") save_async(run + "/step_2", job.state(), ranks, replacing()).wait();
    if (scenario() == "load") load_or_die(world, job, run, ranks);
    if (scenario() == "connect") connect_or_die(world);
    if (exits) {  // what is on the stack stays as it is
      save_async(run + "/step_2", job.state(), ranks, replacing());
      report("done");
      std::exit(0);
    }
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

  /// The step of the checkpoint that the pointer names, and what it holds.
  std::pair<int, Bits> content() const {
    std::pair<int, Bits> found;
    run_threads(1, [&](World& world) {
      SmallJob job(world);
      const LoadResult result = load(path_, job.state(), world.ranks());
      found = {result.path.back() - '0', bits_of(job)};
    });
    return found;
  }

 private:
  std::string path_;
};

/// Processes that play `what`, with rank `victim` killed at its meeting `at`; 0: never. Another
/// one, `slow`, may come late there.
std::vector<RankResult> run_job(const Run& run, const std::string& what, int at, int victim,
                                LoadSafety safety, int slow = -1) {
  ProcessJob job;
  job.size = kRanks;
  job.scenario = what;
  job.test = "a rank that saves";
  job.environment = {{"TESSERA_VICTIM", std::to_string(victim)},
                     {"TESSERA_SLOW", std::to_string(slow)},
                     {"TESSERA_AT", std::to_string(at)},
                     {"TESSERA_SAFETY", std::to_string(static_cast<int>(safety))},
                     {"TESSERA_RUN", run.path()}};
  return run_processes(job);
}

/// The bits of both checkpoints, by rank, where nobody is killed.
const std::map<int, Bits>& whole() {
  static const std::map<int, Bits> made = [] {
    const Run run;
    std::map<int, Bits> out = {run.content()};
    check_others(run_job(run, "save", 0, 0, LoadSafety::kAside), -1, 0);
    out.insert(run.content());
    REQUIRE(out.size() == 2);
    REQUIRE(out.at(1) != out.at(2));
    return out;
  }();
  return made;
}

/// False when the victim's part was over before.
bool killed(const std::string& what, int at, int victim, LoadSafety safety = LoadSafety::kAside) {
  CAPTURE(what, at, victim, static_cast<int>(safety));
  const Run run;
  const auto results = run_job(run, what, at, victim, safety);
  const bool died = results[static_cast<std::size_t>(victim)].signal == SIGKILL;
  check_others(results, victim, died ? 5000 : 0);
  const auto [step, bits] = run.content();
  CHECK((step == 1 || (step == 2 && what != "load" && what != "connect")));
  if (!died) CHECK(step == (what == "load" ? 1 : 2));
  CHECK(bits == whole().at(step));
  return died;
}

constexpr LoadSafety kSafeties[] = {LoadSafety::kAside, LoadSafety::kReadTwice,
                                    LoadSafety::kInPlace};

}  // namespace

TEST_CASE("a rank that saves", "[.]") { play(); }

TEST_CASE("a rank killed at a phase of a save is noticed by all within five seconds") {
  // Before the first meeting; rank 0 once it has published; in the background; while the group of
  // saves in the background connects.
  for (const auto& [what, at, victim] :
       {std::tuple("save", 1, 1), {"save", 10, 0}, {"async", 6, 2}, {"connect", 0, 1}})
    CHECK(killed(what, at, victim));
}

TEST_CASE("a program that calls exit() has its save in the background published before it ends") {
  const Run run;
  check_others(run_job(run, "exit", 6, -1, LoadSafety::kAside, 1), -1, 0);
  const auto [step, bits] = run.content();
  CHECK(step == 2);
  CHECK(bits == whole().at(2));
}

TEST_CASE("a rank killed while it reads is noticed by all, and no state is half loaded") {
  CHECK(killed("load", 7, 2, LoadSafety::kAside));
  CHECK(killed("load", 9, 2, LoadSafety::kReadTwice));
  CHECK(killed("load", 9, 2, LoadSafety::kInPlace));
}

TEST_CASE("a killed rank is noticed within five seconds by one that waits for a slow one") {
  // Whichever of the two rank 0 waits for first; and where rank 0, which keeps the store, dies.
  for (const auto& [what, at, victim, slow] :
       {std::tuple("save", 2, 1, 2), {"save", 2, 2, 1}, {"async", 6, 0, 1}, {"load", 7, 1, 2}}) {
    CAPTURE(what, at, victim, slow);
    const Run run;
    const auto results = run_job(run, what, at, victim, LoadSafety::kAside, slow);
    REQUIRE(results[static_cast<std::size_t>(victim)].signal == SIGKILL);
    const int waiting = kRanks - victim - slow;
    for (const auto& [rank, most_ms] :
         {std::pair(waiting, 5000), {slow, 5000 + 1000 * static_cast<int>(kSlow.count())}}) {
      const RankResult& result = results[static_cast<std::size_t>(rank)];
      INFO(result.report);
      CHECK_FALSE(result.killed);
      check_failed_within(result, most_ms);
      CHECK(result.report.find(fmt::format("rank {}", victim)) != std::string::npos);
    }
    CHECK(run.content().first == 1);
  }
}

// Minutes: every meeting of the ranks.
TEST_CASE("a rank killed at any meeting of a save or load is noticed by all", "[.soak]") {
  int kills = 0;
  const auto every_meeting = [&](const char* what, LoadSafety safety) {
    for (const int victim : {0, 1}) {
      int at = 1;
      while (killed(what, at, victim, safety)) ++at;
      CHECK(at > 8);
      kills += at - 1;
    }
  };
  for (const char* what : {"save", "async"}) every_meeting(what, LoadSafety::kAside);
  for (const LoadSafety safety : kSafeties) every_meeting("load", safety);
  WARN(fmt::format("{} ranks killed", kills));
}

}  // namespace comm_save_process_test
