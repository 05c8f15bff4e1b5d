// Snapshots that are taken while training goes on, and the buffers that they are taken to.
#include <sys/resource.h>
#include <tessera/storage/memory_file_system.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>

#include "lib/live/stream_copy.h"
#include "tests/support/live_trainer.h"

namespace live_lazy_test {

using namespace tessera;
using namespace tessera::test;
using Catch::Matchers::Contains;

namespace {

SaveOptions lazy(FileSystem& fs) {
  SaveOptions options = to(fs);
  options.snapshot = SnapshotTiming::kLazy;
  return options;
}

std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what() + (" (" + error.status().hint + ")");
  }
  return "";
}

long faults_of_this_thread() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_minflt;
}

}  // namespace

TEST_CASE("a lazy snapshot holds the state of the call when it is finished before the change") {
  constexpr int kWorld = 2;
  MemoryFileSystem fs;
  auto groups = thread_ranks(kWorld);
  require_quiet(on_ranks(groups, [&](RankGroup& ranks) {
    Trainer trainer(ranks.rank(), kWorld);
    for (int n = 1; n <= 20; ++n) {
      trainer.set(static_cast<float>(n));
      PendingSave pending =
          save_async("/run/" + std::to_string(n), trainer.state(), ranks, lazy(fs));
      pending.finish_snapshot();
      trainer.set(-1);
      pending.finish_snapshot();  // a second time: nothing
      if (n % 2 == 0) expect(pending.wait().total_bytes > 0, "it is published");
    }
  }));
  groups.clear();
  for (int n = 1; n <= 20; ++n)
    require_quiet(on_ranks(kWorld, [&](RankGroup& ranks) {
      Trainer trainer(ranks.rank(), kWorld);
      LoadPolicy policy;
      policy.file_system = &fs;
      load("/run/" + std::to_string(n), trainer.state(), ranks, policy);
      expect(trainer.is(static_cast<float>(n)), "another step's bytes");
    }));
}

TEST_CASE("what is to be copied at once is copied before a lazy save returns") {
  MemoryFileSystem fs;
  const auto ranks = single_rank();
  std::vector<float> weight(64, 1), counter(5, 1), strided(6, 1);
  LiveState state;
  state.add("weight", {DType::kFloat32, {64}, {}, weight.data()});
  const auto early = {state.add("counter", {DType::kFloat32, {5}, {}, counter.data()}),
                      state.add("strided", {DType::kFloat32, {3}, {2}, strided.data()})};
  state.edit([&](LiveContents& contents) {
    for (const std::uint32_t index : early) contents.tensors[index].copied_at_once = true;
  });
  state.changed = [] { return std::string(); };
  PendingSave pending = save_async("/run/a", state, *ranks, lazy(fs));
  std::ranges::fill(counter, -1.0f);  // before the snapshot is finished
  std::ranges::fill(strided, -1.0f);
  pending.wait();
  LoadPolicy policy;
  policy.file_system = &fs;
  load("/run/a", state, *ranks, policy);
  CHECK(counter == std::vector<float>(5, 1));
  CHECK(strided == std::vector<float>{1, -1, 1, -1, 1, -1});
}

TEST_CASE("a change before finish_snapshot is told on every rank and nothing is published") {
  const bool finishes = GENERATE(false, true), waits = GENERATE(false, true);
  CAPTURE(finishes, waits);
  MemoryFileSystem fs;
  fs.make_directories("/run");
  auto groups = thread_ranks(3);
  require_quiet(on_ranks(groups, [&](RankGroup& ranks) {
    Trainer trainer(ranks.rank(), 3);
    LiveState state = trainer.state();
    // Rank 1 forgets. (Its change is seen whenever it comes: the save waits for its word.)
    if (ranks.rank() == 1) ++trainer.version;
    PendingSave pending = save_async("/run/a", state, ranks, lazy(fs));
    if (ranks.rank() != 1 || finishes) pending.finish_snapshot();
    const std::string thrown = message_of([&] {
      if (waits)
        pending.wait();
      else
        save("/run/b", trainer.state(), ranks, to(fs));
    });
    expect(thrown.find("tensor \"w\"") != std::string::npos, thrown);
    expect(thrown.find("changed before the lazy snapshot was finished") != std::string::npos,
           thrown);
    expect(thrown.find("rank 1") != std::string::npos, thrown);
    expect(thrown.find("optimizer.step()") != std::string::npos, thrown);
    // Told once: the next one goes through.
    save_async("/run/c", trainer.state(), ranks, to(fs)).wait();
  }));
  CHECK(!fs.stat("/run/a"));
  CHECK(!fs.stat("/run/b"));
  CHECK(fs.stat("/run/c"));
}

namespace {

/// Memory that a device fills late: `arrive` of the state's before_lazy_save does.
struct Late {
  std::vector<float> dense = std::vector<float>(64, -1), strided = std::vector<float>(6, -1),
                     counter = std::vector<float>(5, -1);
  std::atomic<int> begun = 0, arrived = 0;
  bool fails = false;
  std::shared_ptr<int> owner = std::make_shared<int>();

  LiveState state() {
    LiveState made;
    const auto all = {made.add("dense", {DType::kFloat32, {64}, {}, dense.data()}),
                      made.add("strided", {DType::kFloat32, {3}, {2}, strided.data()}),
                      made.add("counter", {DType::kFloat32, {5}, {}, counter.data()})};
    made.edit([&](LiveContents& contents) {
      for (const std::uint32_t index : all) {
        contents.tensors[index].written_in_place = true;
        contents.tensors[index].owner = owner;
      }
      contents.tensors[2].copied_at_once = true;
    });
    made.changed = [] { return std::string(); };
    made.before_save = [this] { arrive(); };
    made.before_lazy_save = [this] {
      ++begun;
      return [this] { arrive(); };
    };
    return made;
  }
  void arrive() {
    if (fails) throw std::runtime_error("the device is gone");
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    for (auto* memory : {&dense, &strided, &counter}) std::ranges::fill(*memory, 1.0f);
    ++arrived;
  }
};

}  // namespace

TEST_CASE("a lazy save waits for late memory in the background and writes from where it is") {
  const bool lazily = GENERATE(true, false);
  MemoryFileSystem fs;
  const auto ranks = single_rank();
  Late late;
  PendingSave pending = save_async("/run/a", late.state(), *ranks, lazily ? lazy(fs) : to(fs));
  CHECK(late.begun == (lazily ? 1 : 0));
  pending.finish_snapshot();
  CHECK(late.arrived == 1);
  pending.wait();
  CHECK(late.owner.use_count() == 1);  // nothing is kept once it is written
  LoadPolicy policy;
  policy.file_system = &fs;
  for (auto* memory : {&late.dense, &late.strided, &late.counter}) std::ranges::fill(*memory, 0.0f);
  load("/run/a", late.state(), *ranks, policy);
  CHECK(late.dense == std::vector<float>(64, 1));
  CHECK(late.strided == std::vector<float>{1, 0, 1, 0, 1, 0});
  CHECK(late.counter == std::vector<float>(5, 1));
}

TEST_CASE("what goes wrong while a lazy save waits for late memory fails it on every rank") {
  MemoryFileSystem fs;
  auto groups = thread_ranks(2);
  require_quiet(on_ranks(groups, [&](RankGroup& ranks) {
    Late late;
    late.fails = ranks.rank() == 1;
    LiveState state;
    const auto index =
        state.add_piece("w", {DType::kFloat32, {128}},
                        {Chunk::whole_of({{ranks.rank() * 64}, {64}}), late.dense.data(), {}});
    state.edit([&](LiveContents& contents) { contents.tensors[index].written_in_place = true; });
    state.changed = [] { return std::string(); };
    state.before_lazy_save = [&late] { return [&late] { late.arrive(); }; };
    PendingSave pending = save_async("/run/a", state, ranks, lazy(fs));
    pending.finish_snapshot();  // throws nothing
    const std::string thrown = message_of([&] { pending.wait(); });
    expect(thrown.find("the device is gone") != std::string::npos, thrown);
    expect(thrown.find("rank 1") != std::string::npos, thrown);
  }));
  CHECK(!fs.stat("/run/a"));
}

TEST_CASE("a state that cannot tell its changes has no lazy snapshot") {
  MemoryFileSystem fs;
  auto groups = thread_ranks(2);
  require_quiet(on_ranks(groups, [&](RankGroup& ranks) {
    Trainer trainer(ranks.rank(), 2);
    LiveState state = trainer.state();
    if (ranks.rank() == 1) state.changed = {};
    const std::string thrown = message_of([&] { save_async("/run/a", state, ranks, lazy(fs)); });
    expect(thrown.find("LiveState::changed") != std::string::npos, thrown);
    expect(thrown.find("rank 1") != std::string::npos, thrown);
  }));
  PendingSave none;
  none.finish_snapshot();
}

TEST_CASE("the buffers of a snapshot are touched once for all saves") {
  constexpr std::size_t kFloats = 8 << 20;  // 32 MiB: 8,192 pages
  MemoryFileSystem fs;
  std::vector<float> memory(kFloats, 1);
  const auto ranks = single_rank();
  std::vector<long> faults;
  for (int n = 0; n < 3; ++n) {
    LiveState state;
    state.add("w", {DType::kFloat32, {kFloats}, {}, memory.data()});
    const long before = faults_of_this_thread();
    PendingSave pending = save_async("/run/" + std::to_string(n), state, *ranks, to(fs));
    faults.push_back(faults_of_this_thread() - before);
    pending.wait();
  }
  CAPTURE(faults);
  CHECK(faults[0] > 0);
  CHECK(faults[1] < 200);
  CHECK(faults[2] < 200);
}

TEST_CASE("streamed copies are copies at every size and alignment") {
  std::mt19937_64 random(11);
  std::vector<std::byte> from(1 << 17), to(from.size() + 256);
  for (std::byte& b : from) b = static_cast<std::byte>(random());
  for (int n = 0; n < 800; ++n) {
    const bool wide_vectors = n % 2 == 0 && has_wide_vectors();
    const std::size_t bytes = n < 400 ? random() % (80 << 10) : (16 << 10) + n / 2 - 200;
    const std::size_t a = random() % 80, b = random() % 80;
    std::ranges::fill(to, std::byte{0x5a});
    stream_copy(to.data() + b, from.data() + a, bytes, wide_vectors);
    CAPTURE(bytes, a, b, wide_vectors);
    REQUIRE(std::memcmp(to.data() + b, from.data() + a, bytes) == 0);
    for (std::size_t i = 0; i < b; ++i) REQUIRE(to[i] == std::byte{0x5a});
    for (std::size_t i = b + bytes; i < b + bytes + 64; ++i) REQUIRE(to[i] == std::byte{0x5a});
  }
}

}  // namespace live_lazy_test
