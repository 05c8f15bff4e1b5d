// Saving in the background: the state as it was at the call, one save in flight, plans used again,
// errors that nobody asked for come with the next call.
#include <tessera/storage/faulty_file_system.h>
#include <tessera/storage/memory_file_system.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdio>

#include "tests/support/live_trainer.h"
#include "tests/support/sanitized.h"

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

TEST_CASE("what changes after the call does not reach the checkpoint, save after save") {
  constexpr int kWorld = 3;
  constexpr int kSaves = testing::kSanitized ? 200 : 1000;
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

TEST_CASE("what changes after the call does not reach the checkpoint of a large state") {
  constexpr std::uint32_t kMany = (3 << 18) + 5;  // by several threads, past the caches
  constexpr std::int64_t kRows = 300, kColumns = 1000;
  std::vector<std::uint32_t> dense(kMany), strided(2 * kRows * kColumns);
  const auto set = [](std::vector<std::uint32_t>& memory, std::uint32_t n) {
    for (std::uint32_t i = 0; i < memory.size(); ++i) memory[i] = (i + n) * 2654435761u;
  };
  const auto state_of = [&](std::vector<std::uint32_t>& whole, std::vector<std::uint32_t>& gaps) {
    LiveState state;
    state.add("dense", {DType::kInt32, {kMany}, {}, whole.data()});
    state.add("strided", {DType::kInt32, {kRows, kColumns}, {2, 2 * kRows}, gaps.data()});
    return state;
  };
  MemoryFileSystem fs;
  const auto ranks = single_rank();
  std::size_t differing = 0;
  // (A sanitizer keeps what was freed, which later tests then fork.)
  const std::uint32_t rounds = testing::kSanitized ? 2 : 30;
  for (std::uint32_t n = 0; n < rounds; ++n) {
    set(dense, n);
    set(strided, n);
    SaveOptions options = to(fs);
    options.force = true;
    if (n % 3 == 0) options.snapshot = SnapshotTiming::kLazy;
    LiveState state = state_of(dense, strided);
    state.changed = [] { return std::string(); };
    PendingSave pending = save_async("/run/a", state, *ranks, options);
    if (n % 3 == 0) pending.finish_snapshot();
    dense.assign(dense.size(), 0xffffffff);  // while it is being written
    strided.assign(strided.size(), 0xffffffff);
    pending.wait();
    std::vector<std::uint32_t> found(kMany), gaps(strided.size()), expected(kMany);
    LoadPolicy policy;
    policy.file_system = &fs;
    load("/run/a", state_of(found, gaps), *ranks, policy);
    set(expected, n);
    for (std::size_t i = 0; i < kMany; ++i) differing += found[i] != expected[i];
    expected.resize(gaps.size());
    set(expected, n);
    for (std::size_t i = 0; i < gaps.size(); i += 2) differing += gaps[i] != expected[i];
  }
  CHECK(differing == 0);
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
      moved.edit([](LiveContents& contents) { contents.tensors[2].pieces[0].strides = {1}; });
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
  enum class Next { kWait, kSave, kLoad };
  for (const Next next : {Next::kWait, Next::kSave, Next::kLoad}) {
    INFO("next call " << static_cast<int>(next));
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
        LoadPolicy policy;
        policy.file_system = &fs;
        if (next == Next::kWait)
          pending.wait();
        else if (next == Next::kSave)
          save("/run/b", trainer.state(), ranks, to(fs));
        else
          load("/run/b", trainer.state(), ranks, policy);
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

TEST_CASE("what a state's own agreement changes in it is what is saved") {
  MemoryFileSystem fs;
  const auto ranks = single_rank();
  float one = 1, two = 2;
  for (const char* path : {"/run/1", "/run/2", "/run/3"}) {
    LiveState state;
    state.add("v", {DType::kFloat32, {}, {}, &two});
    state.add("w", {DType::kFloat32, {}, {}, &one});
    state.agreed = [&] {
      state.edit([](LiveContents& contents) {
        std::swap(contents.tensors[0], contents.tensors[1]);
        contents.dict.entries.insert(contents.dict.entries.begin() + 1,
                                     {"more", {key_item("more")}, Value::integer(1)});
      });
      return std::vector<Agreement>();
    };
    save(path, state, *ranks, to(fs));
    float v = 0, w = 0;
    LiveState into;
    into.add("v", {DType::kFloat32, {}, {}, &v});
    into.add("w", {DType::kFloat32, {}, {}, &w});
    into.add_value("more", Value());
    LoadPolicy policy;
    policy.file_system = &fs;
    load(path, into, *ranks, policy);
    CHECK(v == 1);
    CHECK(w == 2);
  }
}

TEST_CASE("an error that no call is left for goes to stderr") {
  MemoryFileSystem fs;
  fs.make_directories("/run");
  const auto told_at_end = [&](bool waits) {
    FaultyFileSystem faulty(fs, {.at = 1, .ops = io_op_bit(IoOp::kWrite)});
    std::FILE* const file = std::tmpfile();
    REQUIRE(file != nullptr);
    std::fflush(stderr);
    const int stderr_before = ::dup(STDERR_FILENO);
    ::dup2(::fileno(file), STDERR_FILENO);
    {
      const auto ranks = single_rank();
      Trainer trainer(0, 1);
      PendingSave pending = save_async("/run/a", trainer.state(), *ranks, to(faulty));
      try {
        if (waits) pending.wait();
      } catch (const Error&) {
      }
    }
    std::fflush(stderr);
    ::dup2(stderr_before, STDERR_FILENO);
    ::close(stderr_before);
    std::rewind(file);
    std::string text(4096, '\0');
    text.resize(std::fread(text.data(), 1, text.size(), file));
    std::fclose(file);
    return text;
  };
  CHECK_THAT(told_at_end(false), Contains("tessera: a background save failed") &&
                                     Contains("/run/a") && Contains("write"));
  CHECK(told_at_end(true).empty());
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
  // A run that went back: what was just written and what came before it are its newest.
  save_step(4, false);
  CHECK(names() == std::vector<std::string>{"latest", "step_0", "step_10", "step_3", "step_4"});
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
