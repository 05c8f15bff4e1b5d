// What ranks write when a collective fails, and what the merger makes of it.
#include <fmt/format.h>
#include <signal.h>
#include <tessera/encoding/json.h>
#include <tessera/fsdp/trace_merge.h>
#include <torch/torch.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>

#include "tests/fsdp/comm_processes.h"
#include "tests/fsdp/comm_support.h"

namespace comm_trace_test {

using namespace tessera;
using namespace tessera::fsdp;
using namespace tessera::fsdp::testing;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

namespace {

class Folder {
 public:
  Folder() {
    std::string pattern = (fs::temp_directory_path() / "tessera-traces-XXXXXX").string();
    if (!mkdtemp(pattern.data())) throw std::runtime_error("mkdtemp failed");
    path_ = pattern;
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }
  void put(const std::string& name, const std::string& content) const {
    std::ofstream(path_ / name, std::ios::binary) << content;
  }

 private:
  fs::path path_;
};

/// The collectives of a training script: drawn from `seed`, the same on every rank.
struct Call {
  CommOp op;
  std::int64_t part;
  std::string unit;
  CommPhase phase;
};

std::vector<Call> script(std::uint32_t seed, int length) {
  std::mt19937 random(seed);
  std::vector<Call> out;
  for (int i = 0; i < length; ++i) {
    Call call;
    call.op =
        std::array{CommOp::kAllGather, CommOp::kReduceScatter, CommOp::kAllReduce}[random() % 3];
    call.part = 1 + static_cast<std::int64_t>(random() % 50);
    call.unit = fmt::format("layers.{}", random() % 4);
    call.phase = random() % 2 ? CommPhase::kForward : CommPhase::kBackward;
    out.push_back(call);
  }
  return out;
}

void issue(Communicator& comm, const Call& call) {
  const CommTag tag{call.unit, call.phase};
  at::Tensor part = at::ones({call.part}), whole = at::ones({call.part * comm.size()});
  if (call.op == CommOp::kAllGather) comm.all_gather_into(whole, part, tag);
  if (call.op == CommOp::kReduceScatter) comm.reduce_scatter_into(part, whole, Reduce::kSum, tag);
  if (call.op == CommOp::kAllReduce) comm.all_reduce(part, Reduce::kSum, tag);
}

enum class Fault { kOtherUnit, kOtherSize, kSkips, kLeaves, kSleeps };
constexpr int kFaults = 5;

/// Rank `culprit` does something else at call `at`.
void play(World& world, const std::vector<Call>& calls, int at, int culprit, Fault fault) {
  const auto comm = world.communicator();
  for (int i = 0; i < static_cast<int>(calls.size()); ++i) {
    Call call = calls[static_cast<std::size_t>(i)];
    if (i == at && world.rank() == culprit) {
      if (fault == Fault::kSkips) continue;
      if (fault == Fault::kLeaves) return;
      if (fault == Fault::kOtherUnit) call.unit = "layers.17";
      if (fault == Fault::kOtherSize) call.part += 1;
      if (fault == Fault::kSleeps) std::this_thread::sleep_for(world.timeout() * 3 / 2 + 500ms);
    }
    issue(*comm, call);
  }
}

std::string expected_call(const Call& call, int size) {
  const std::int64_t numel = call.op == CommOp::kAllReduce ? call.part : call.part * size;
  return fmt::format("{} of {} Float for unit \"{}\" in {}", comm_op_name(call.op), numel,
                     call.unit, comm_phase_name(call.phase));
}

const TraceSummary::Side& side_of(const TraceSummary& summary, int rank) {
  for (const TraceSummary::Side& side : summary.sides)
    if (side.rank == rank) return side;
  FAIL("no side of rank " << rank);
  return summary.sides.front();
}

int number(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text ? std::stoi(text) : otherwise;
}

/// As a rank of its own process.
void play_process() {
  WorldOptions options;
  options.timeout = 4000ms;  // of joining too, on a machine that may be busy
  World world = init_from_env(options);
  const int victim = number("TESSERA_VICTIM", 1);
  const auto calls = script(5, 40);
  if (scenario() == "trace killed" && world.rank() == victim) {
    world.communicator()->observe([](const CommRecord& record) {
      if (record.sequence == 17) kill(getpid(), SIGKILL);
    });
  }
  const Fault fault = scenario() == "trace sleeps" ? Fault::kSleeps : Fault::kOtherUnit;
  const bool killed = scenario() == "trace killed";
  try {
    play(world, calls, killed ? 1000 : 17, victim, fault);
    report("ended");
  } catch (const Error& error) {
    report(error.what());
  }
}

}  // namespace

TEST_CASE("a rank that traces", "[.]") { play_process(); }

TEST_CASE("the merger names the first divergent collective and the missing ranks in 20 desyncs") {
  int told = 0;
  constexpr int kDesyncs = 20;
  for (int seed = 0; seed < kDesyncs; ++seed) {
    std::mt19937 random(static_cast<std::uint32_t>(seed));
    const auto calls = script(static_cast<std::uint32_t>(100 + seed), 30);
    const int size = 2 + static_cast<int>(random() % 3);
    const int at = static_cast<int>(random() % 29);  // not the last: a skip would show nowhere
    const int culprit = static_cast<int>(random() % static_cast<unsigned>(size));
    const auto fault = static_cast<Fault>(seed % kFaults);
    const bool gloo = seed % 2 == 1;
    CAPTURE(seed, size, at, culprit, static_cast<int>(fault), gloo);
    const Folder folder;
    WorldOptions options;
    options.backend = gloo ? "gloo" : "threads";
    options.timeout = 250ms;
    options.trace_folder = folder.path().string();
    thrown_by_ranks(
        size, [&](World& world) { play(world, calls, at, culprit, fault); }, options);

    const TraceSummary summary = merge_traces(folder.path());
    INFO(summary.to_string());
    CHECK(summary.group == "world");
    CHECK(summary.sequence == static_cast<std::uint64_t>(at));
    const bool leaves = fault == Fault::kLeaves;
    CHECK(summary.missing == (leaves ? std::vector<int>{culprit} : std::vector<int>{}));
    CHECK(static_cast<int>(summary.ranks.size()) == size - leaves);
    const int other = culprit == 0 ? 1 : 0;
    CHECK(side_of(summary, other).call == expected_call(calls[static_cast<std::size_t>(at)], size));
    CHECK_FALSE(side_of(summary, other).error.empty());
    if (fault == Fault::kSleeps) {
      CHECK(summary.kind == TraceSummary::Kind::kIncomplete);
      CHECK(side_of(summary, culprit).after_s > 0.5);
    } else if (leaves) {
      CHECK(summary.kind == TraceSummary::Kind::kIncomplete);
    } else {
      // A skipped call equal to the next one is no divergence here.
      CHECK(summary.kind == TraceSummary::Kind::kDiffer);
      CHECK(side_of(summary, culprit).call != side_of(summary, other).call);
    }
    ++told;
  }
  CHECK(told == kDesyncs);
}

TEST_CASE("processes: one killed - one that sleeps - one that diverges") {
  const auto what = GENERATE("killed", "sleeps", "diverges");
  const int victim = GENERATE(0, 2);
  CAPTURE(what, victim);
  if (std::string(what) != "killed" || victim != 0) {  // rank 0 keeps the store that names it
    const Folder folder;
    ProcessJob job{.size = 3, .scenario = fmt::format("trace {}", what)};
    job.test = "a rank that traces";
    job.environment = {{"TESSERA_TRACE_DIR", folder.path().string()},
                       {"TESSERA_VICTIM", std::to_string(victim)}};
    const auto results = run_processes(job);
    const TraceSummary summary = merge_traces(folder.path());
    INFO(summary.to_string());
    for (int rank = 0; rank < 3; ++rank) {
      CHECK_FALSE(results[static_cast<std::size_t>(rank)].killed);
      INFO(results[static_cast<std::size_t>(rank)].report);
    }
    const bool killed = std::string(what) == "killed";
    CHECK(summary.missing == (killed ? std::vector<int>{victim} : std::vector<int>{}));
    CHECK(summary.sequence == 17);
    CHECK(summary.kind == (std::string(what) == "diverges" ? TraceSummary::Kind::kDiffer
                                                           : TraceSummary::Kind::kIncomplete));
    if (std::string(what) == "diverges")
      CHECK(side_of(summary, victim).call.find("layers.17") != std::string::npos);
    if (std::string(what) == "sleeps") CHECK(side_of(summary, victim).after_s > 0.9);
  }
}

TEST_CASE("a trace holds the last 2000 collectives of every group") {
  const Folder folder;
  WorldOptions options;
  options.trace_folder = folder.path().string();
  thrown_by_ranks(
      2,
      [&](World& world) {
        at::Tensor one = at::ones({1});
        for (int i = 0; i < 2100; ++i) world.communicator()->all_reduce(one, Reduce::kSum, {"u"});
        world.communicator()->write_trace("asked for");
        world.communicator()->barrier({});
      },
      options);
  for (const char* name : {"rank0.json", "rank1.json"}) {
    std::ifstream in(folder.path() / name);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    const Value trace = parse_json(std::as_bytes(std::span(text)));
    const ValueList& records = trace.find("groups")->as_list().at(0).find("records")->as_list();
    CHECK(records.size() == 2000);
    CHECK(records.front().find("sequence")->as_int() == 100);
    CHECK(records.back().find("done")->as_bool());
    CHECK(trace.find("groups")->as_list().at(0).find("error")->as_string() == "asked for");
  }
  const TraceSummary summary = merge_traces(folder.path());
  CHECK(summary.kind == TraceSummary::Kind::kAlike);
  CHECK(summary.to_string().find("did the same") != std::string::npos);
}

TEST_CASE("of several groups the earliest divergence is told") {
  const Folder folder;
  const auto trace = [](int rank, const std::string& first, const std::string& second) {
    return fmt::format(
        R"({{"format":"tessera-trace","version":1,"rank":{},"written_us":9,"groups":[)"
        R"({{"name":"a","ranks":[0,1],"error":"","records":[{}]}},)"
        R"({{"name":"b","ranks":[0,1,3],"error":"late","records":[{}]}}]}})",
        rank, first, second);
  };
  const auto record = [](int sequence, const char* unit, int at) {
    return fmt::format(
        R"({{"sequence":{},"op":"all-gather","phase":"forward","unit":"{}","dtype":"Float","numel":4,)"
        R"("done":false,"issued_us":{}}})",
        sequence, unit, at);
  };
  folder.put("rank0.json", trace(0, record(7, "u", 50), record(3, "x", 40)));
  folder.put("rank1.json", trace(1, record(7, "v", 51), record(3, "y", 41)));
  folder.put("rank9.json.part", "half");
  const TraceSummary summary = merge_traces(folder.path());
  CHECK(summary.group == "b");
  CHECK(summary.sequence == 3);
  CHECK(summary.missing == std::vector<int>{3});
  CHECK(summary.kind == TraceSummary::Kind::kDiffer);
}

TEST_CASE("what is no trace is refused with its file") {
  const Folder folder;
  CHECK_THROWS_WITH(merge_traces(folder.path()), Catch::Contains("no rank<N>.json"));
  CHECK_THROWS_AS(merge_traces(folder.path() / "absent"), Error);
  for (
      const char* bad :
      {"", "{", "[]", "{}", R"({"format":"tessera-trace","version":2,"rank":0,"groups":[]})",
       R"({"format":"tessera-trace","version":1,"rank":-1,"groups":[]})",
       R"({"format":"tessera-trace","version":1,"rank":0,"groups":[{"name":"a","ranks":["x"]}]})"}) {
    INFO(bad);
    folder.put("rank0.json", bad);
    CHECK_THROWS_WITH(merge_traces(folder.path()), Catch::Contains("rank0.json"));
  }
}

}  // namespace comm_trace_test
