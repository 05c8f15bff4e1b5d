// Loading into live memory at any number of ranks, strict by default.
#include <tessera/live/load.h>
#include <tessera/live/save.h>
#include <tessera/storage/counting_file_system.h>
#include <tessera/storage/memory_file_system.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <map>

#include "tests/support/live_job.h"

using namespace tessera;
using namespace tessera::test;
using Catch::Matchers::Contains;

namespace {

SaveOptions saving(FileSystem& fs) {
  SaveOptions options;
  options.file_system = &fs;
  return options;
}

LoadPolicy loading(FileSystem& fs) {
  LoadPolicy policy;
  policy.file_system = &fs;
  return policy;
}

/// A checkpoint of one rank, made of the state that `build` fills in.
void save_one(FileSystem& fs, const std::function<void(LiveState&)>& build) {
  LiveState state;
  build(state);
  const auto ranks = single_rank();
  save("/run/a", state, *ranks, saving(fs));
}

LoadResult load_one(const LiveState& state, const LoadPolicy& policy) {
  const auto ranks = single_rank();
  return load("/run/a", state, *ranks, policy);
}

Path at(std::initializer_list<const char*> keys) {
  Path path;
  for (const char* key : keys) path.push_back(key_item(key));
  return path;
}

}  // namespace

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
      if (result.loaded.size() != state.dict.entries.size()) throw std::runtime_error("not all");
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
      state.tensors.push_back({{DType::kFloat32, Shape({kRanks * kNumel})}, {}});
      state.tensors.back().pieces.push_back({Chunk::whole_of(Box{{rank * kNumel}, Shape({kNumel})}),
                                             memory.data() + (t * kRanks + rank) * kNumel,
                                             {}});
      state.dict.entries.push_back({"t" + std::to_string(t),
                                    {key_item("t" + std::to_string(t))},
                                    Value::tensor(static_cast<std::uint32_t>(t))});
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

TEST_CASE("missing and unexpected entries are errors that name them, unless allowed") {
  MemoryFileSystem fs;
  static float a[2] = {1, 2};
  save_one(fs, [](LiveState& state) {
    state.add(at({"model", "a"}), {DType::kFloat32, {2}, {}, a});
    state.add(at({"model", "b"}), {DType::kFloat32, {2}, {}, a});
    state.add(at({"optim", "state", "a", "exp_avg"}), {DType::kFloat32, {2}, {}, a});
    state.add_value("epoch", Value::integer(7));
  });
  float target[2] = {9, 9};
  LiveState state;
  state.add(at({"model", "a"}), {DType::kFloat32, {2}, {}, target});
  state.add(at({"model", "c"}), {DType::kFloat32, {2}, {}, target});
  LoadPolicy policy = loading(fs);
  CHECK_THROWS_WITH(load_one(state, policy), Contains("not stored, of the model: \"model.c\""));
  CHECK(target[0] == 9);
  policy.model = PartPolicy::kAllowMissing;
  CHECK_THROWS_WITH(load_one(state, policy), Contains("\"model.b\"") && Contains("not asked for"));
  CHECK(target[0] == 9);
  policy.model = PartPolicy::kAllowBoth;
  const LoadResult result = load_one(state, policy);
  CHECK(result.loaded == std::vector<std::string>{"model.a"});
  CHECK(result.missing == std::vector<std::string>{"model.c"});
  // Parts that the state does not have are listed and no error.
  CHECK(result.unexpected == std::vector<std::string>{"model.b", "optim.state.a.exp_avg", "epoch"});
  CHECK(target[1] == 2);
}

TEST_CASE("a part that is skipped stays as it is") {
  MemoryFileSystem fs;
  static float a[2] = {1, 2};
  save_one(fs, [](LiveState& state) {
    state.add(at({"model", "a"}), {DType::kFloat32, {2}, {}, a});
    state.add(at({"optim", "state", "a", "exp_avg"}), {DType::kFloat32, {2}, {}, a});
  });
  float weight[2] = {9, 9};
  float moment[2] = {9, 9};
  LiveState state;
  state.add(at({"model", "a"}), {DType::kFloat32, {2}, {}, weight});
  state.add(at({"optim", "state", "a", "exp_avg"}), {DType::kFloat32, {2}, {}, moment});
  LoadPolicy policy = loading(fs);
  policy.optimizer = PartPolicy::kSkip;
  const LoadResult result = load_one(state, policy);
  CHECK(result.skipped == std::vector<std::string>{"optim.state.a.exp_avg"});
  CHECK(weight[0] == 1);
  CHECK(moment[0] == 9);
}

TEST_CASE("another shape is an error naming both, and other float types are cast and listed") {
  MemoryFileSystem fs;
  static float a[4] = {1, 2, 3, 300};
  save_one(fs, [](LiveState& state) {
    state.add("a", {DType::kFloat32, {4}, {}, a});
    state.add("b", {DType::kFloat32, {2, 2}, {}, a});
  });
  double wide[4] = {};
  float narrow[4] = {9, 9, 9, 9};
  LiveState state;
  state.add("a", {DType::kFloat64, {4}, {}, wide});
  state.add("b", {DType::kFloat32, {4}, {}, narrow});
  LoadPolicy policy = loading(fs);
  CHECK_THROWS_WITH(load_one(state, policy), Contains("\"b\"") &&
                                                 Contains("expected float32 [4]") &&
                                                 Contains("found float32 [2,2]"));
  CHECK(wide[0] == 0);
  policy.allow_mismatched = true;
  LoadResult result = load_one(state, policy);
  REQUIRE(result.cast.size() == 1);
  CHECK(result.cast[0].name == "a");
  CHECK(result.cast[0].found == "float32 [4]");
  CHECK(wide[3] == 300);
  CHECK(narrow[0] == 9);
  policy.allow_cast = false;
  result = load_one(state, policy);
  CHECK(result.cast.empty());
  CHECK(result.mismatched.size() == 2);
}

TEST_CASE("steps are read from numbers and tensors of one element, and written as either") {
  MemoryFileSystem fs;
  static std::int64_t big = 1 << 24;
  static float one_element = 12;
  save_one(fs, [](LiveState& state) {
    state.add_value("whole", Value::integer(7));
    state.add_value("real", Value::real(8));
    state.add("int64", {DType::kInt64, {}, {}, &big});
    state.add("vector", {DType::kFloat32, {1}, {}, &one_element});
    state.add("value", {DType::kFloat32, {}, {}, &one_element});
  });
  float steps[4] = {};
  Value value;
  LiveState state;
  state.add("whole", {DType::kFloat32, {}, {}, &steps[0]});
  state.add("real", {DType::kFloat32, {}, {}, &steps[1]});
  state.add("int64", {DType::kFloat32, {}, {}, &steps[2]});
  state.add("vector", {DType::kFloat32, {}, {}, &steps[3]});
  state.add_value("value", Value());
  state.on_value = [&](const StateEntry& entry) { value = entry.value; };
  load_one(state, loading(fs));
  CHECK(steps[0] == 7);
  CHECK(steps[1] == 8);
  CHECK(steps[2] == 1 << 24);
  CHECK(steps[3] == 12);
  CHECK(value == Value::real(12));
}

TEST_CASE("a step above 2^24 does not fit a float32, and nothing lands") {
  MemoryFileSystem fs;
  static std::int64_t big = (1 << 24) + 1;
  save_one(fs, [](LiveState& state) {
    state.add("step", {DType::kInt64, {}, {}, &big});
    state.add("w", {DType::kInt64, {}, {}, &big});
  });
  float step = 3;
  std::int64_t w = 3;
  LiveState state;
  state.add("w", {DType::kInt64, {}, {}, &w});
  state.add("step", {DType::kFloat32, {}, {}, &step});
  CHECK_THROWS_WITH(load_one(state, loading(fs)), Contains("\"step\"") &&
                                                      Contains("float32 holds exactly") &&
                                                      Contains("found 16777217"));
  CHECK(step == 3);
  CHECK(w == 3);
}

TEST_CASE("state that does not exist yet is made from what is stored") {
  MemoryFileSystem fs;
  static float a[2] = {1, 2};
  save_one(fs, [](LiveState& state) {
    state.add(at({"model", "a"}), {DType::kFloat32, {2}, {}, a});
    state.add(at({"optim", "state", "a", "exp_avg"}), {DType::kFloat32, {2}, {}, a});
  });
  float weight[2] = {};
  const auto moment = std::make_shared<std::vector<float>>();
  LiveState state;
  state.add(at({"model", "a"}), {DType::kFloat32, {2}, {}, weight});
  state.materialise = [&](LiveState& made, const Manifest& stored) {
    REQUIRE(stored.state.find("optim.state.a.exp_avg") != nullptr);
    moment->assign(2, 0);
    made.add(at({"optim", "state", "a", "exp_avg"}), {DType::kFloat32, {2}, {}, moment->data()});
  };
  const LoadResult result = load_one(state, loading(fs));
  CHECK(result.loaded.size() == 2);
  CHECK((*moment)[1] == 2);
}

TEST_CASE("an optimizer stored by parameter number is loaded by name") {
  MemoryFileSystem fs;
  static float a[2] = {1, 2};
  static float b[3] = {3, 4, 5};
  const auto state_path = [](std::int64_t id, const char* leaf) {
    return below(at({"optim", "state"}), {int_key_item(id), key_item(leaf)});
  };
  const auto group_path = [](const char* key) {
    return below(at({"optim", "param_groups"}), {index_item(0), key_item(key)});
  };
  save_one(fs, [&](LiveState& state) {
    state.add(at({"model", "a"}), {DType::kFloat32, {2}, {}, a});
    state.add(at({"model", "b"}), {DType::kFloat32, {3}, {}, b});
    state.add(state_path(0, "exp_avg"), {DType::kFloat32, {2}, {}, a});
    state.add(state_path(1, "exp_avg"), {DType::kFloat32, {3}, {}, b});
    state.add_value(group_path("lr"), Value::real(0.5));
    state.add_value(group_path("params"), Value::list({Value::integer(0), Value::integer(1)}));
  });
  float weights[5] = {};
  float moments[5] = {};
  LiveState state;
  state.add(at({"model", "a"}), {DType::kFloat32, {2}, {}, weights});
  state.add(at({"model", "b"}), {DType::kFloat32, {3}, {}, weights + 2});
  state.add(at({"optim", "state", "a", "exp_avg"}), {DType::kFloat32, {2}, {}, moments});
  state.add(at({"optim", "state", "b", "exp_avg"}), {DType::kFloat32, {3}, {}, moments + 2});
  state.add_value(group_path("lr"), Value());
  state.add_value(group_path("params"), Value());
  std::map<std::string, Value> values;
  state.on_value = [&](const StateEntry& entry) { values[entry.name] = entry.value; };
  const LoadResult result = load_one(state, loading(fs));
  CHECK(result.unexpected.empty());
  CHECK(std::vector<float>(moments, moments + 5) == std::vector<float>{1, 2, 3, 4, 5});
  CHECK(values["optim.param_groups.0.lr"] == Value::real(0.5));
  CHECK(values["optim.param_groups.0.params"] ==
        Value::list({Value::string("a"), Value::string("b")}));
}

TEST_CASE("a subtree and other names are taken for the whole when asked") {
  MemoryFileSystem fs;
  static float a[2] = {1, 2};
  save_one(fs, [&](LiveState& state) {
    state.add(at({"model", "layers.0.w"}), {DType::kFloat32, {2}, {}, a});
    state.add_value("epoch", Value::integer(3));
  });
  float target[2] = {};
  LiveState state;
  state.add("h.0.w", {DType::kFloat32, {2}, {}, target});
  LoadPolicy policy = loading(fs);
  policy.root = "model";
  policy.names.renames = {{"layers.*", "h.*"}};
  const LoadResult result = load_one(state, policy);
  CHECK(result.loaded == std::vector<std::string>{"h.0.w"});
  CHECK(result.unexpected.empty());
  CHECK(target[1] == 2);
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
      made.tensors[made.add("b", {DType::kFloat32, {2}, {}, second.data()})].scratch = true;
      made.tensors[made.add("step", {DType::kFloat32, {}, {}, &step})].scratch = true;
      return made;
    };
    const auto ranks = single_rank();
    SaveOptions options;
    options.file_system = &fs;
    LiveState with_number = state();
    std::erase_if(with_number.dict.entries, [](const auto& entry) { return entry.name == "step"; });
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
  CHECK_THROWS_WITH(load_one(state, policy),
                    Contains("checksum") && Contains("the live state is partly filled"));
}
