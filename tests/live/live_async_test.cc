// Saving in the background: the state as it was at the call, one save in flight, plans used again,
// errors that nobody asked for come with the next call.
#include <tessera/storage/faulty_file_system.h>
#include <tessera/storage/memory_file_system.h>

#include <catch2/catch.hpp>

#include "tests/support/live_trainer.h"

namespace live_async_test {

using namespace tessera;
using namespace tessera::test;
using Catch::Matchers::Contains;

namespace {

/// Elements and values of every rank's part of the checkpoint of step `n` that are not step n's.
int wrong_in(const std::string& path, float n, int world, FileSystem& fs) {
  std::vector<float> rows(static_cast<std::size_t>(world) * 64),
      columns(static_cast<std::size_t>(world) * 20), bias(16);
  float step = 0;
  int wrong = 0;
  LiveState state;
  state.add("w", {DType::kFloat32, {world * 8, 8}, {}, rows.data()});
  state.add("columns", {DType::kFloat32, {world * 4, 5}, {}, columns.data()});
  state.add("bias", {DType::kFloat32, {16}, {}, bias.data()});
  state.add("step", {DType::kFloat32, {}, {}, &step});
  LoadPolicy policy;
  policy.file_system = &fs;
  policy.other = policy.model = PartPolicy::kAllowUnexpected;
  for (const char* name : {"epoch", "note"}) state.add_value(name, Value());
  for (int r = 0; r < world; ++r) state.add_value("rng.rank_" + std::to_string(r), Value());
  const auto ranks = single_rank();
  const LoadResult result = load(path, state, *ranks, policy);
  for (std::size_t i = 0; i < rows.size(); ++i)
    wrong += rows[i] != n * 100 + static_cast<float>(i / 64);
  for (std::size_t i = 0; i < columns.size(); ++i)
    wrong += columns[i] != n * 10 + static_cast<float>(i / 20);
  for (const float x : bias) wrong += x != n * 100;
  wrong += step != n;
  wrong += result.values.size() != static_cast<std::size_t>(world) + 2;
  for (const StateEntry& entry : result.values) {
    if (entry.name == "epoch")
      wrong += !(entry.value == Value::integer(static_cast<std::int64_t>(n) / 10));
    if (entry.name == "note") wrong += !(entry.value == Value::string("short"));
    for (int r = 0; r < world; ++r) {
      Trainer trainer(r, world);
      trainer.step = n;
      if (entry.name == "rng.rank_" + std::to_string(r))
        wrong += !(entry.value == Value::bytes(trainer.generator()));
    }
  }
  return wrong;
}

}  // namespace

TEST_CASE("what changes after the call does not reach the checkpoint in 1000 saves") {
  constexpr int kWorld = 3;
  constexpr int kSaves = 1000;
  MemoryFileSystem fs;
  auto groups = thread_ranks(kWorld);
  const auto path = [](int n) { return "/run/step_" + std::to_string(n); };
  require_quiet(on_ranks(groups, [&](RankGroup& ranks) {
    Trainer trainer(ranks.rank(), kWorld);
    for (int n = 1; n <= kSaves; ++n) {
      trainer.set(static_cast<float>(n));
      SaveOptions options = to(fs);
      if (n % 3 == 0) options.snapshot = SnapshotTiming::kLazy;
      PendingSave pending = save_async(path(n), trainer.state(), ranks, options);
      if (n % 3 == 0) pending.finish_snapshot();
      trainer.set(-1);  // while it is being written
    }
  }));
  groups.clear();  // waits for the last one
  int wrong = 0;
  for (int n = 1; n <= kSaves; ++n) wrong += wrong_in(path(n), static_cast<float>(n), kWorld, fs);
  CHECK(wrong == 0);
  // The check itself: another step's checkpoint is wrong in every number.
  CHECK(wrong_in(path(1), 12, kWorld, fs) >= kWorld * 84 + 16 + 1 + 1 + kWorld);
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
      moved.tensors[2].pieces[0].strides = {1};
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
      if (entry.name == "rng") expect(entry.value == Value::bytes(trainer.generator()), "rng");
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

}  // namespace live_async_test
