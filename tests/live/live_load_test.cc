// Loading into live memory at any number of ranks, and what a refusal or damage leaves there.
#include <tessera/storage/counting_file_system.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/support/live_job.h"
#include "tests/support/live_saved.h"

namespace live_load_test {

using namespace tessera;
using namespace tessera::test;
using Catch::Matchers::Contains;

TEST_CASE("a state saved at one world size is loaded at any other") {
  for (std::uint64_t seed = 1; seed <= 120; ++seed) {
    INFO("seed " << seed);
    const auto tensors = random_tensors(seed);
    const int before = static_cast<int>(1 + seed % 5);
    const int after = static_cast<int>(1 + seed / 5 % 6);
    MemoryFileSystem fs;
    LiveJob saved(tensors, before, seed);
    saved.fill();
    require_quiet(on_ranks(before, [&](RankGroup& ranks) {
      save("/run/a", saved.state(ranks.rank()), ranks, saving(fs));
    }));
    LiveJob loaded(tensors, after, seed + 1000);
    loaded.fill(false);
    require_quiet(on_ranks(after, [&](RankGroup& ranks) {
      LoadPolicy policy = loading(fs);
      policy.verify = seed % 3 == 0;
      policy.safety = static_cast<LoadSafety>(seed % 3);
      policy.threads = 1 + static_cast<int>(seed % 2);
      const LiveState state = loaded.state(ranks.rank());
      const LoadResult result = load("/run/a", state, ranks, policy);
      if (result.loaded.size() != state.dict().entries.size()) throw std::runtime_error("not all");
      if (!result.missing.empty() || !result.unexpected.empty() || !result.cast.empty())
        throw std::runtime_error("missing or unexpected");
      if (result.safety != policy.safety) throw std::runtime_error("read in another way");
    }));
    REQUIRE(loaded.wrong_elements() == 0);
  }
}

TEST_CASE("a rank opens the items that it reads from and no others") {
  constexpr int kRanks = 16, kTensors = 20;
  constexpr std::int64_t kNumel = 32 << 10;  // of a rank's part: too large to be read with others
  std::vector<float> memory(static_cast<std::size_t>(kRanks * kTensors * kNumel));
  const auto state_of = [&](int rank) {
    LiveState state;
    for (int t = 0; t < kTensors; ++t) {
      state.add_piece("t" + std::to_string(t), {DType::kFloat32, Shape({kRanks * kNumel})},
                      {Chunk::whole_of(Box{{rank * kNumel}, Shape({kNumel})}),
                       memory.data() + (t * kRanks + rank) * kNumel,
                       {}});
    }
    return state;
  };
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<float>(i % 8191);
  const std::vector<float> saved = memory;
  MemoryFileSystem fs;
  require_quiet(on_ranks(kRanks, [&](RankGroup& ranks) {
    save("/run/a", state_of(ranks.rank()), ranks, saving(fs));
  }));
  std::ranges::fill(memory, 0.0f);
  CountingFileSystem counting(fs);
  require_quiet(on_ranks(kRanks, [&](RankGroup& ranks) {
    load("/run/a", state_of(ranks.rank()), ranks, loading(counting));
  }));
  REQUIRE(std::ranges::equal(memory, saved));
  const IoCounts items = counting.of(".distcp");
  INFO(items.reads << " reads of " << kRanks * kTensors << " items");
  // Each item once: its two ends and its bytes. All ranks opening all items took 16 times as many.
  REQUIRE(items.reads <= 2 * kRanks * kTensors);
}

TEST_CASE("values go to the state's callbacks, before and after the bytes land") {
  MemoryFileSystem fs;
  save_one(fs, [](LiveState& state) {
    static float w[2] = {1, 2};
    state.add("w", {DType::kFloat32, {2}, {}, w});
    state.add_value(at({"train", "epoch"}), Value::integer(7));
    state.add_value("name", Value::string("run"));
  });
  float w[2] = {0, 0};
  LiveState state;
  state.add("w", {DType::kFloat32, {2}, {}, w});
  state.add_value(at({"train", "epoch"}), Value::integer(0));
  state.add_value("name", Value());
  std::vector<std::string> order;
  state.check_value = [&](const StateEntry& entry) {
    order.push_back("check " + entry.name + (w[0] == 0 ? " empty" : " full"));
  };
  state.on_value = [&](const StateEntry& entry) {
    order.push_back("value " + entry.name + (w[0] == 0 ? " empty" : " full"));
    if (entry.name == "train.epoch") CHECK(entry.value == Value::integer(7));
  };
  state.after_load = [&](const std::vector<std::string>& filled) {
    CHECK(filled == std::vector<std::string>{"w"});
    order.push_back("after");
  };
  const LoadResult result = load_one(state, loading(fs));
  CHECK(order == std::vector<std::string>{"check train.epoch empty", "check name empty",
                                          "value train.epoch full", "value name full", "after"});
  CHECK(result.values.size() == 2);
  CHECK(w[1] == 2);
}

TEST_CASE("all values are handed over where one of them is refused, and the first is told") {
  MemoryFileSystem fs;
  std::vector<float> w(4, 2);
  const auto state_of = [&] {
    LiveState state;
    state.add("w", {DType::kFloat32, {4}, {}, w.data()});
    for (const char* name : {"a", "b", "c", "d"}) state.add_value(name, Value::integer(1));
    return state;
  };
  const auto ranks = single_rank();
  save("/run/a", state_of(), *ranks, saving(fs));
  LiveState state = state_of();
  std::vector<std::string> taken;
  state.on_value = [&](const StateEntry& entry) {
    if (entry.name == "b" || entry.name == "d") fail(Code::kInvalidArgument, "not this one");
    taken.push_back(entry.name);
  };
  CHECK_THROWS_WITH(load("/run/a", state, *ranks, loading(fs)),
                    Contains("not this one") && Contains("\"b\"") && !Contains("\"d\""));
  CHECK(taken == std::vector<std::string>{"a", "c"});
}

TEST_CASE("a value that is refused leaves all memory as it was, on every rank") {
  MemoryFileSystem fs;
  std::vector<std::vector<float>> memory(3, std::vector<float>(4, 5));
  const auto state_of = [&](int rank) {
    LiveState state;
    state.add("w", {DType::kFloat32, {4}, {}, memory[static_cast<std::size_t>(rank)].data()});
    state.add_value("epoch", Value::integer(1));
    return state;
  };
  require_quiet(on_ranks(
      3, [&](RankGroup& ranks) { save("/run/a", state_of(ranks.rank()), ranks, saving(fs)); }));
  for (auto& w : memory) w.assign(4, 9);
  const auto thrown = on_ranks(3, [&](RankGroup& ranks) {
    LiveState state = state_of(ranks.rank());
    if (ranks.rank() == 1)
      state.check_value = [](const StateEntry&) { fail(Code::kInvalidArgument, "not this one"); };
    load("/run/a", state, ranks, loading(fs));
  });
  for (const std::string& message : thrown) {
    CHECK_THAT(message, Contains("not this one"));
    CHECK_THAT(message, Contains("rank 1"));
    CHECK_THAT(message, Contains("\"epoch\""));
  }
  for (const auto& w : memory) CHECK(w == std::vector<float>(4, 9));
}

TEST_CASE("each rank has its own value back, and another world size is an error unless allowed") {
  MemoryFileSystem fs;
  const auto state_of = [&](int rank) {
    static float w[2] = {1, 2};
    LiveState state;
    state.add("w", {DType::kFloat32, {2}, {}, w});
    state.add_value("rng", Value::bytes("seed of " + std::to_string(rank)), ValueScope::kPerRank);
    return state;
  };
  require_quiet(on_ranks(
      3, [&](RankGroup& ranks) { save("/run/a", state_of(ranks.rank()), ranks, saving(fs)); }));
  const auto load_at = [&](int world, const LoadPolicy& policy) {
    return on_ranks(world, [&](RankGroup& ranks) {
      const LoadResult result = load("/run/a", state_of(ranks.rank()), ranks, policy);
      for (const StateEntry& entry : result.values)
        if (entry.name != "rng" ||
            entry.value != Value::bytes("seed of " + std::to_string(ranks.rank())))
          throw std::runtime_error("another rank's");
      if (ranks.rank() < 3 && result.values.size() != 1) throw std::runtime_error("no value");
    });
  };
  require_quiet(load_at(3, loading(fs)));
  for (const std::string& message : load_at(2, loading(fs)))
    CHECK_THAT(message, Contains("\"rng.rank_2\"") && Contains("not asked for"));
  for (const std::string& message : load_at(4, loading(fs)))
    CHECK_THAT(message, Contains("\"rng\"") && Contains("rank 3"));
  LoadPolicy policy = loading(fs);
  policy.other = PartPolicy::kAllowBoth;
  require_quiet(load_at(2, policy));
  require_quiet(load_at(4, policy));
}

TEST_CASE("tensors that do not go together are refused before any but scratch memory changes") {
  for (const LoadSafety safety :
       {LoadSafety::kAside, LoadSafety::kReadTwice, LoadSafety::kInPlace}) {
    MemoryFileSystem fs;
    std::vector<float> first = {1, 2}, second = {1, 3};
    float step = 0;
    const auto state = [&] {
      LiveState made;
      made.add("a", {DType::kFloat32, {2}, {}, first.data()});
      made.add("b", {DType::kFloat32, {2}, {}, second.data()});
      made.add("step", {DType::kFloat32, {}, {}, &step});
      made.edit([](LiveContents& contents) {
        contents.tensors[1].scratch = contents.tensors[2].scratch = true;
      });
      return made;
    };
    const auto ranks = single_rank();
    SaveOptions options;
    options.file_system = &fs;
    LiveState with_number = state();
    with_number.remove_if([](const auto& entry) { return entry.name == "step"; });
    with_number.add_value("step", Value::integer(7));
    save("/run/a", with_number, *ranks, options);
    first = second = {-1, -1};
    LiveState into = state();
    std::vector<std::string> asked;
    into.check_loaded = [&](const std::vector<std::string>& names) {
      asked = names;
      CHECK(second == std::vector<float>{1, 3});
      CHECK(step == 7);
      fail(Code::kCorrupt, "they differ");
    };
    LoadPolicy policy;
    policy.file_system = &fs;
    policy.safety = safety;
    std::string message;
    try {
      load("/run/a", into, *ranks, policy);
    } catch (const Error& error) {
      message = error.what();
    }
    CHECK_THAT(message, Contains("they differ"));
    CHECK_THAT(message, !Contains("partly filled"));
    CHECK(asked == std::vector<std::string>{"a", "b", "step"});
    CHECK(first == std::vector<float>{-1, -1});
  }
}

TEST_CASE("damage found while reading leaves the state as it was, or says that it is not") {
  MemoryFileSystem fs;
  static std::vector<float> saved(4096, 1);
  save_one(fs, [](LiveState& state) {
    state.add("a", {DType::kFloat32, {4096}, {}, saved.data()});
    state.add("b", {DType::kFloat32, {4096}, {}, saved.data()});
  });
  Bytes file = fs.read_file("/run/a/__0_0.distcp");
  file[file.size() / 4 * 3] ^= std::byte{1};
  fs.write_file("/run/a/__0_0.distcp", file);
  std::vector<float> a(4096, 9);
  std::vector<float> b(4096, 9);
  LiveState state;
  state.add("a", {DType::kFloat32, {4096}, {}, a.data()});
  state.add("b", {DType::kFloat32, {4096}, {}, b.data()});
  LoadPolicy policy = loading(fs);
  const std::vector<float> before(4096, 9);
  for (const std::uint64_t limit : {policy.stage_limit_bytes, std::uint64_t{8192}}) {
    policy.stage_limit_bytes = limit;  // what does not fit aside is read twice
    CHECK_THROWS_WITH(load_one(state, policy), Contains("checksum") && !Contains("partly"));
    CHECK(std::ranges::equal(a, before));
    CHECK(std::ranges::equal(b, before));
  }
  policy.safety = LoadSafety::kInPlace;
  // Of a file this small the seal tells before anything is read into its place.
  CHECK_THROWS_WITH(load_one(state, policy),
                    Contains("changed after they were written") && !Contains("partly"));
  CHECK(std::ranges::equal(a, before));
  fs.remove_file("/run/a/tessera.manifest.json");
  CHECK_THROWS_WITH(load_one(state, policy),
                    Contains("checksum") && Contains("the live state is partly filled"));
}

}  // namespace live_load_test
