// Saving in the background: the state as it was at the call, one save in flight, plans used again,
// errors that nobody asked for come with the next call.
#include <tessera/ops/load.h>
#include <tessera/ops/save.h>
#include <tessera/storage/faulty_file_system.h>
#include <tessera/storage/memory_file_system.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>

#include "tests/support/live_job.h"

using namespace tessera;
using namespace tessera::test;
using Catch::Matchers::Contains;

namespace {

SaveOptions to(FileSystem& fs) {
  SaveOptions options;
  options.file_system = &fs;
  return options;
}

/// A job of one tensor a rank, one replicated one, a 0-dim step and values.
struct Trainer {
  explicit Trainer(int rank_, int world_) : rank(rank_), world(world_), rows(64), bias(16) {}

  LiveState state() {
    LiveState made;
    made.add_piece("w", {DType::kFloat32, {world * 8, 8}},
                   {Chunk::whole_of({{rank * 8, 0}, {8, 8}}), rows.data(), {}});
    made.add("bias", {DType::kFloat32, {16}, {}, bias.data()});
    made.add("step", {DType::kFloat32, {}, {}, &step});
    made.add_value("epoch", Value::integer(static_cast<std::int64_t>(step) / 10));
    made.add_value("note", Value::string(note));
    made.add_value("rng", Value::bytes("r" + std::to_string(rank)), ValueScope::kPerRank);
    return made;
  }
  void set(float value) {
    step = value;
    for (float& x : rows) x = value * 100 + static_cast<float>(rank);
    for (float& x : bias) x = value * 100;
  }
  bool is(float value) const {
    for (const float x : rows)
      if (x != value * 100 + static_cast<float>(rank)) return false;
    for (const float x : bias)
      if (x != value * 100) return false;
    return step == value;
  }

  int rank;
  int world;
  std::vector<float> rows, bias;
  float step = 0;
  std::string note = "short";
};

void expect(bool condition, const char* what) {
  if (!condition) throw std::runtime_error(what);
}

}  // namespace

TEST_CASE("what changes after the call does not reach the checkpoint, save after save") {
  constexpr int kWorld = 3;
  constexpr int kSaves = 40;
  MemoryFileSystem fs;
  auto groups = thread_ranks(kWorld);
  require_quiet(on_ranks(groups, [&](RankGroup& ranks) {
    Trainer trainer(ranks.rank(), kWorld);
    for (int n = 1; n <= kSaves; ++n) {
      trainer.set(static_cast<float>(n));
      save_async("/run/step_" + std::to_string(n), trainer.state(), ranks, to(fs));
      trainer.set(-1);  // while it is being written
    }
  }));
  groups.clear();  // waits for the last one
  for (int n = 1; n <= kSaves; ++n) {
    require_quiet(on_ranks(kWorld, [&](RankGroup& ranks) {
      Trainer trainer(ranks.rank(), kWorld);
      LoadPolicy policy;
      policy.file_system = &fs;
      load("/run/step_" + std::to_string(n), trainer.state(), ranks, policy);
      expect(trainer.is(static_cast<float>(n)), "another step's bytes");
    }));
  }
}

TEST_CASE("a plan is used again while the structure is the same, and not when anything changes") {
  MemoryFileSystem fs;
  auto groups = thread_ranks(3);
  require_quiet(on_ranks(groups, [&](RankGroup& ranks) {
    Trainer trainer(ranks.rank(), 3);
    int number = 0;
    const auto report = [&](const LiveState& state, bool background = false) {
      const std::string path = "/run/" + std::to_string(number++);
      return background ? save_async(path, state, ranks, to(fs)).wait()
                        : save(path, state, ranks, to(fs));
    };
    SaveReport first = report(trainer.state());
    expect(!first.plan_reused && first.plan_bytes > 0, "the first is planned");
    trainer.set(5);
    SaveReport second = report(trainer.state());
    expect(second.plan_reused && second.plan_bytes == 0, "the second is not");
    expect(report(trainer.state(), true).plan_reused, "nor is one in the background");
    trainer.set(5e6);
    trainer.note.assign(1000, 'x');
    expect(!report(trainer.state()).plan_reused, "a longer value");
    expect(report(trainer.state()).plan_reused, "again");
    LiveState more = trainer.state();
    std::vector<float> extra(4);
    more.add("extra", {DType::kFloat32, {4}, {}, extra.data()});
    expect(!report(more).plan_reused, "one tensor more");
    expect(!report(trainer.state()).plan_reused, "one less");
    LiveState moved = trainer.state();
    if (ranks.rank() == 1) {  // one rank's strides
      moved.tensors[1].pieces[0].strides = {1};
    }
    expect(!report(moved).plan_reused, "strides of one rank");
  }));
  // Values that were written from a plan used again.
  require_quiet(on_ranks(3, [&](RankGroup& ranks) {
    Trainer trainer(ranks.rank(), 3);
    LiveState state = trainer.state();
    Value epoch;
    state.on_value = [&](const StateEntry& entry) {
      if (entry.name == "epoch") epoch = entry.value;
      if (entry.name == "rng")
        expect(entry.value == Value::bytes("r" + std::to_string(ranks.rank())), "rng");
    };
    LoadPolicy policy;
    policy.file_system = &fs;
    load("/run/1", state, ranks, policy);
    expect(trainer.is(5) && epoch == Value::integer(0), "the second save's values");
    load("/run/4", state, ranks, policy);
    expect(trainer.is(5e6) && epoch == Value::integer(500000), "the fifth save's values");
  }));
}

TEST_CASE(
    "an error in the background is thrown by wait, or by the next call, on every rank, once") {
  for (const bool waits : {true, false}) {
    INFO("waits " << waits);
    MemoryFileSystem fs;
    fs.make_directories("/run");
    auto groups = thread_ranks(3);
    require_quiet(on_ranks(groups, [&](RankGroup& ranks) {
      // Rank 2's disk fails at its first write.
      FaultyFileSystem faulty(fs,
                              {.at = ranks.rank() == 2 ? 1u : 0u, .ops = io_op_bit(IoOp::kWrite)});
      Trainer trainer(ranks.rank(), 3);
      PendingSave pending = save_async("/run/a", trainer.state(), ranks, to(faulty));
      std::string thrown;
      try {
        if (waits)
          pending.wait();
        else
          save("/run/b", trainer.state(), ranks, to(fs));
      } catch (const Error& error) {
        thrown = error.what();
      }
      expect(thrown.find("rank 2") != std::string::npos, "every rank names rank 2");
      expect(thrown.find("/run/a") != std::string::npos, "and the save it was");
      // Told once: the next one goes through.
      save_async("/run/c", trainer.state(), ranks, to(fs)).wait();
    }));
    CHECK(!fs.stat("/run/a"));
    CHECK(!fs.stat("/run/b"));
    CHECK(fs.stat("/run/c"));
    CHECK(fs.open_directory("/run")->list().size() == 1);
  }
}

TEST_CASE("a second save waits for the one in flight") {
  MemoryFileSystem fs;
  auto groups = thread_ranks(2);
  require_quiet(on_ranks(groups, [&](RankGroup& ranks) {
    Trainer trainer(ranks.rank(), 2);
    PendingSave first = save_async("/run/a", trainer.state(), ranks, to(fs));
    PendingSave second = save_async("/run/b", trainer.state(), ranks, to(fs));
    expect(first.done(), "the first is over once the second has begun");
    second.wait();
  }));
}

TEST_CASE("the pointer names the newest, and what it names is never removed") {
  MemoryFileSystem fs;
  auto groups = thread_ranks(2);
  const auto names = [&] {
    std::vector<std::string> found;
    for (const FileInfo& info : fs.open_directory("/run")->list()) found.push_back(info.name);
    return found;
  };
  fs.make_directories("/run/step_0");                        // not ours
  fs.make_directories("/run/.step_3.tmp-0011223344556677");  // a killed save's
  const auto save_step = [&](int step, bool point) {
    require_quiet(on_ranks(groups, [&](RankGroup& ranks) {
      Trainer trainer(ranks.rank(), 2);
      SaveOptions options = to(fs);
      options.update_latest = point;
      options.keep_last = 2;
      save("/run/step_" + std::to_string(step), trainer.state(), ranks, options);
    }));
  };
  save_step(1, true);
  CHECK(as_text(fs.read_file("/run/latest")) == "step_1");
  save_step(2, false);
  save_step(3, false);
  // 1 is old, but named; 2 and 3 are the newest two.
  CHECK(names() == std::vector<std::string>{"latest", "step_0", "step_1", "step_2", "step_3"});
  save_step(10, true);
  CHECK(as_text(fs.read_file("/run/latest")) == "step_10");
  CHECK(names() == std::vector<std::string>{"latest", "step_0", "step_10", "step_3"});
  // A run that went back: the newest by number stay, and what was just written.
  save_step(4, false);
  CHECK(names() == std::vector<std::string>{"latest", "step_0", "step_10", "step_4"});
  // The pointer leads readers there.
  Trainer trainer(0, 1);
  LiveState state = trainer.state();
  const auto ranks = single_rank();
  LoadPolicy policy;
  policy.file_system = &fs;
  policy.model = policy.other = PartPolicy::kAllowBoth;
  policy.allow_mismatched = true;
  CHECK(load("/run", state, *ranks, policy).path == "/run/step_10");
}
