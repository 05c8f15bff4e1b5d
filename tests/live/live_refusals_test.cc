// What ranks must not disagree on: each error names the tensor, the rank, what was expected and
// what was found, is the same on every rank, and nothing is written.
#include <tessera/live/load.h>
#include <tessera/live/save.h>
#include <tessera/storage/faulty_file_system.h>
#include <tessera/storage/memory_file_system.h>
#include <tessera/storage/observed_file_system.h>

#include <catch2/catch.hpp>
#include <set>

#include "tests/support/growth.h"
#include "tests/support/live_job.h"

namespace live_refusals_test {

using namespace tessera;
using namespace tessera::test;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using testing::growth_exponent;
using testing::processor_seconds;

namespace {

alignas(64) std::byte memory[4096];

/// What `world` ranks throw when they save states that `build` makes; checks that all throw the
/// same, and that the folder stays empty.
std::string refusal(int world, const std::function<void(LiveState&, int rank)>& build) {
  MemoryFileSystem fs;
  fs.make_directories("/run");
  SaveOptions options;
  options.file_system = &fs;
  const auto thrown = on_ranks(world, [&](RankGroup& ranks) {
    LiveState state;
    build(state, ranks.rank());
    save("/run/a", state, ranks, options);
  });
  CHECK(std::set<std::string>(thrown.begin(), thrown.end()).size() == 1);
  CHECK(fs.open_directory("/run")->list().empty());
  return thrown[0];
}

LivePiece rows(std::int64_t begin, std::int64_t count) {
  return {Chunk::whole_of({{begin, 0}, {count, 3}}), memory, {}};
}
const TensorSpec kSpec{DType::kFloat32, {8, 3}};

}  // namespace

TEST_CASE("elements that no rank holds are refused") {
  CHECK_THAT(
      refusal(2, [](LiveState& state,
                    int rank) { state.add_piece("w", kSpec, rows(rank * 4, rank == 0 ? 4 : 3)); }),
      Contains("\"w\"") && Contains("expected 24 elements, found 21") && Contains("[7:8,0:3]"));
}

TEST_CASE("pieces that overlap are refused, naming both ranks") {
  CHECK_THAT(
      refusal(3,
              [](LiveState& state, int rank) {
                if (rank > 0)
                  state.add_piece("w", kSpec, rows(rank == 1 ? 0 : 4, rank == 1 ? 5 : 4));
              }),
      Contains("\"w\"") && Contains("of rank 1") && Contains("of rank 2") && Contains("overlap"));
}

TEST_CASE("equal pieces of two ranks are refused unless they are replicas") {
  CHECK_THAT(
      refusal(3, [](LiveState& state, int) { state.add_piece("w", kSpec, rows(0, 8)); }),
      Contains("\"w\"") && Contains("ranks 0 and 1 both hold") && Contains("not replicated"));
}

TEST_CASE("a piece outside of its tensor is refused, naming the rank") {
  CHECK_THAT(refusal(2, [](LiveState& state,
                           int rank) { state.add_piece("w", kSpec, rows(rank * 5, 4)); }),
             Contains("\"w\"") && Contains("not inside float32 [8,3]") && Contains("rank 1"));
}

TEST_CASE("ranks that disagree on a type or a shape are refused") {
  CHECK_THAT(refusal(3,
                     [](LiveState& state, int rank) {
                       const DType dtype = rank == 2 ? DType::kBFloat16 : DType::kFloat32;
                       state.add("w", {dtype, {8, 3}, {}, memory});
                     }),
             Contains("expected float32 [8,3] as on rank 0, found bfloat16 [8,3] on rank 2"));
}

TEST_CASE("ranks that disagree on a shared value are refused with both values") {
  CHECK_THAT(
      refusal(3, [](LiveState& state,
                    int rank) { state.add_value("lr", Value::real(rank == 1 ? 0.5 : 0.25)); }),
      Contains("\"lr\"") && Contains("expected 0.25 as on rank 0, found 0.5 on rank 1"));
}

TEST_CASE("ranks that tell different things that must agree are refused with both") {
  CHECK_THAT(refusal(3,
                     [&](LiveState& state, int rank) {
                       state.add("w", {DType::kFloat32, {3}, {}, memory});
                       state.agreed = [=] {
                         std::vector<Agreement> all = {{"of all", "1", ""}};
                         if (rank == 0) all.push_back({"of rank 0 alone", "5", ""});
                         if (rank > 0)
                           all.push_back({"step of w", rank == 1 ? "step 3" : "step 4", ""});
                         return all;
                       };
                     }),
             Contains("\"step of w\"") &&
                 Contains("expected step 3 as on rank 1, found step 4 on rank 2"));
}

TEST_CASE("what must agree is compared where a plan fits as well, and lets it fit") {
  MemoryFileSystem fs;
  SaveOptions options;
  options.file_system = &fs;
  auto groups = thread_ranks(2);
  const auto save_at = [&](const char* path, std::vector<std::string> steps) {
    return on_ranks(groups, [&](RankGroup& ranks) {
      LiveState state;
      state.add("w", {DType::kFloat32, {3}, {}, memory});
      const std::string step = steps[static_cast<std::size_t>(ranks.rank())];
      state.agreed = [=] { return std::vector<Agreement>{{"w", step, "step alike"}}; };
      const bool again = save(path, state, ranks, options).plan_reused;
      if (again != (std::string(path) != "/run/a")) throw std::runtime_error("plan");
    });
  };
  require_quiet(save_at("/run/a", {"3", "3"}));
  require_quiet(save_at("/run/b", {"10", "10"}));
  for (const std::string& message : save_at("/run/c", {"11", "12"}))
    CHECK_THAT(message, Contains("expected 11 as on rank 0, found 12 on rank 1"));
  CHECK_FALSE(fs.stat("/run/c"));
}

TEST_CASE("a shared value that some ranks lack is refused") {
  CHECK_THAT(refusal(3,
                     [](LiveState& state, int rank) {
                       if (rank != 1) state.add_value("lr", Value::real(0.5));
                     }),
             Contains("\"lr\"") && Contains("2 of 3 ranks"));
}

TEST_CASE("a tensor on one rank and a value on another are refused") {
  CHECK_THAT(refusal(2,
                     [](LiveState& state, int rank) {
                       if (rank == 0) state.add("x", {DType::kFloat32, {3}, {}, memory});
                       if (rank == 1) state.add_value("x", Value::integer(1));
                     }),
             Contains("\"x\"") && Contains("expected a tensor as on rank 0, found a value"));
}

TEST_CASE("memory that is missing and strides that do not fit are refused") {
  CHECK_THAT(refusal(2,
                     [](LiveState& state, int) {
                       state.add("x", {DType::kFloat32, {3}, {}, nullptr});
                     }),
             Contains("\"x\"") && Contains("no memory"));
  CHECK_THAT(refusal(2,
                     [](LiveState& state, int) {
                       state.add("x", {DType::kFloat32, {3, 2}, {1}, memory});
                     }),
             Contains("\"x\"") && Contains("1 strides for 2 dimensions"));
}

TEST_CASE("shapes that no tensor can have are the caller's, not damage") {
  for (const std::vector<std::int64_t>& shape :
       {std::vector<std::int64_t>{std::int64_t{1} << 40, std::int64_t{1} << 40},
        {-1},
        {std::int64_t{1} << 61}})
    CHECK_THAT(refusal(2,
                       [&](LiveState& state, int) {
                         state.add("w", {DType::kFloat64, shape, {}, memory});
                       }),
               StartsWith("invalid argument") && Contains("\"w\"") && Contains("2^63 - 1") ||
                   Contains("negative extent"));
}

TEST_CASE("adding many tensors takes time for each, and names stay unique") {
  float x = 0;
  const auto add_many = [&](LiveState& state, int many) {
    for (int i = 0; i < many; ++i)
      state.add("layers." + std::to_string(i) + ".weight", {DType::kFloat32, {1}, {}, &x});
  };
  const auto seconds_of = [&](int many) {
    LiveState state;
    return processor_seconds([&] { add_many(state, many); });
  };
  constexpr double kMost = 1.4;  // each beside all others: 2
  CHECK(growth_exponent(2000, 32000, seconds_of, 5, kMost) < kMost);
  LiveState state;
  add_many(state, 100);
  CHECK_THROWS_AS(state.add("layers.7.weight", {DType::kFloat32, {1}, {}, &x}), Error);
  state.edit([](LiveContents& contents) { contents.dict.entries[7].name = "renamed"; });
  state.add("layers.7.weight", {DType::kFloat32, {1}, {}, &x});
  CHECK_THROWS_AS(state.add_value("layers.7.weight", Value::integer(1)), Error);
  state.edit([](LiveContents& contents) { contents.dict.entries.resize(3); });
  state.add("layers.5.weight", {DType::kFloat32, {1}, {}, &x});
  CHECK_THROWS_AS(state.add("layers.2.weight", {DType::kFloat32, {1}, {}, &x}), Error);
  CHECK(state.dict().entries.size() == 4);
}

TEST_CASE(
    "a state that was moved from, and one that is edited by its own calls, know their names") {
  float x = 0;
  const TensorView view = {DType::kFloat32, {1}, {}, &x};
  const TensorSpec spec = {DType::kFloat32, {2}};
  const auto half = [&](std::int64_t at) {
    return LivePiece{Chunk::whole_of({{at}, {1}}), &x, {}};
  };
  LiveState state;
  state.add("w", view);
  const LiveState taken = std::move(state);
  CHECK(taken.dict().entries.size() == 1);
  for (const std::int64_t at : {0, 1}) state.add_piece("w", spec, half(at));
  CHECK(state.dict().entries.size() == 1);
  CHECK_THROWS_AS(state.add("w", view), Error);
  LiveState within;
  within.add("w", view);
  within.edit([&](LiveContents& contents) {
    within.add("x", view);
    contents.dict.entries.clear();
    within.add_piece("y", spec, half(0));
    contents.dict.entries.push_back({"z", {key_item("z")}, contents.dict.entries[0].value});
  });
  within.add_piece("z", spec, half(1));
  within.add("w", view);
  REQUIRE(within.dict().entries.size() == 3);
  CHECK(within.structure() == nullptr);  // of y, too
  CHECK_THROWS_WITH(within.edit([](LiveContents& contents) {
    contents.dict.entries.clear();
    throw std::runtime_error("half way");
  }),
                    "half way");
  CHECK(within.structure() == nullptr);
  within.add("w", view);
}

TEST_CASE("entries that no load could put back side by side are refused") {
  float x = 0;
  const TensorView view = {DType::kFloat32, {1}, {}, &x};
  const auto refused = [&](const std::function<void(LiveState&, int)>& fill) {
    MemoryFileSystem fs;
    std::string message;
    on_ranks(2, [&](RankGroup& ranks) {
      LiveState state;
      fill(state, ranks.rank());
      SaveOptions options;
      options.file_system = &fs;
      try {
        save("/run/a", state, ranks, options);
      } catch (const Error& error) {
        if (ranks.rank() == 1) message = error.what();
      }
    });
    CHECK(!fs.stat("/run/a"));
    return message;
  };
  CHECK_THAT(refused([&](LiveState& state, int) {
               state.add("a", view);
               state.add_value("c", Value::integer(1));
               state.add(Path{key_item("a"), key_item("b")}, view);
             }),
             Contains("\"a\" stands where \"a.b\" has its place"));
  CHECK_THAT(refused([&](LiveState& state, int rank) {  // each rank's alone would do
               if (rank == 0) state.add_value("a", Value::integer(1), ValueScope::kPerRank);
               if (rank == 1)
                 state.add_piece(Path{key_item("a"), key_item("rank_0"), key_item("b")},
                                 {DType::kFloat32, {1}}, {Chunk::whole_of({{0}, {1}}), &x, {}});
             }),
             Contains("\"a.rank_0\" stands where \"a.rank_0.b\" has its place"));
  CHECK_THAT(refused([&](LiveState& state, int) {
               state.add("a", view);
               state.append_entry({"other", {key_item("a")}, Value::integer(1)});
             }),
             Contains("has its place"));
  CHECK_THAT(refused([&](LiveState& state, int) {
               state.add(Path{key_item("a"), index_item(0)}, view);
               state.add(Path{key_item("a"), key_item("b")}, view);
             }),
             Contains("\"a.0\" is of a list, and \"a.b\" of a dict at the same place"));
}

TEST_CASE("a name that was a value of each rank and was removed may be another's") {
  LiveState state;
  float x = 0;
  for (const char* name : {"rng", "order"})
    state.add_value(name, Value::integer(1), ValueScope::kPerRank);
  state.remove_if([](const StateEntry& entry) { return entry.name == "rng"; });
  state.add("rng", {DType::kFloat32, {1}, {}, &x});
  CHECK(state.per_rank() == std::set<std::string>{"order"});
}

TEST_CASE("ranks that save to different places are refused") {
  MemoryFileSystem fs;
  SaveOptions options;
  options.file_system = &fs;
  const auto thrown = on_ranks(2, [&](RankGroup& ranks) {
    save("/run/" + std::to_string(ranks.rank()), LiveState{}, ranks, options);
  });
  for (const std::string& message : thrown)
    CHECK_THAT(message, Contains("rank 0 to /run/0, rank 1 to /run/1"));
}

TEST_CASE("two entries that would be stored under one name are refused") {
  CHECK_THAT(refusal(2,
                     [](LiveState& state, int) {
                       state.add_value("rng", Value::integer(1), ValueScope::kPerRank);
                       state.add_value("rng.rank_1", Value::integer(2));
                     }),
             Contains("rng.rank_1"));
}

TEST_CASE("what is there already is not replaced unless asked") {
  MemoryFileSystem fs;
  SaveOptions options;
  options.file_system = &fs;
  const auto save_twice = [&] {
    return on_ranks(2, [&](RankGroup& ranks) {
      LiveState state;
      state.add("x", {DType::kFloat32, {3}, {}, memory});
      save("/run/a", state, ranks, options);
    });
  };
  require_quiet(save_twice());
  for (const std::string& message : save_twice()) CHECK_THAT(message, Contains("already exists"));
  options.force = true;
  require_quiet(save_twice());
}

namespace {

/// Another save replaces /run/a: what was just opened there is the old one, half removed.
class Replaced final : public ObservedFileSystem {
 public:
  using ObservedFileSystem::ObservedFileSystem;
  std::unique_ptr<Directory> open_directory(const std::string& path) const override {
    const bool old = path == "/run/a" && !replaced_;
    replaced_ = replaced_ || old;
    return ObservedFileSystem::open_directory(old ? "/run/half_removed" : path);
  }

 private:
  mutable bool replaced_ = false;
};

}  // namespace

TEST_CASE("one that another save replaces in that moment is replaced all the same") {
  MemoryFileSystem memory_fs;
  const auto write = [&](FileSystem& fs) {
    return on_ranks(1, [&](RankGroup& ranks) {
      SaveOptions options;
      options.file_system = &fs;
      options.force = true;
      LiveState state;
      state.add("x", {DType::kFloat32, {3}, {}, memory});
      save("/run/a", state, ranks, options);
    });
  };
  require_quiet(write(memory_fs));
  memory_fs.make_directories("/run/half_removed");
  memory_fs.create("/run/half_removed/notes.txt", IoMode::kBuffered)->close();
  Replaced fs(memory_fs);
  require_quiet(write(fs));
  memory_fs.remove_tree("/run/a");
  memory_fs.rename("/run/half_removed", "/run/a");
  CHECK_THAT(write(memory_fs)[0], Contains("is no checkpoint (it holds notes.txt)"));
}

TEST_CASE("ranks that save with other options are refused, naming the option") {
  for (const auto& [name, change] :
       {std::pair<const char*, void (*)(SaveOptions&)>(
            "SaveOptions::force: rank 0 with false, rank 1 with true",
            [](SaveOptions& options) { options.force = true; }),
        {"SaveOptions::update_latest", [](SaveOptions& options) { options.update_latest = true; }},
        {"SaveOptions::keep_last: rank 0 with 0, rank 1 with 3",
         [](SaveOptions& options) { options.keep_last = 3; }},
        {"SaveOptions::format", [](SaveOptions& options) { options.format = "hf"; }}}) {
    MemoryFileSystem fs;
    fs.make_directories("/run");
    const auto thrown = on_ranks(3, [&, change = change](RankGroup& ranks) {
      SaveOptions options;
      options.file_system = &fs;
      if (ranks.rank() == 1) change(options);
      LiveState state;
      state.add("x", {DType::kFloat32, {3}, {}, memory});
      save("/run/a", state, ranks, options);
    });
    for (const std::string& message : thrown) CHECK_THAT(message, Contains(name));
    CHECK(fs.open_directory("/run")->list().empty());
  }
}

TEST_CASE("paths that end in dots name their folder or nothing, and make none") {
  MemoryFileSystem fs;
  fs.make_directories("/run");
  SaveOptions options;
  options.file_system = &fs;
  LiveState state;
  state.add("x", {DType::kFloat32, {3}, {}, memory});
  const auto ranks = single_rank();
  for (const char* path : {"/run/new/..", "/run/new/../", "/", "/.", ".", "..", "./"})
    CHECK_THROWS_WITH(save(path, state, *ranks, options), Contains("does not end in a name"));
  CHECK(fs.open_directory("/run")->list().empty());
  save("/run/new/a/.", state, *ranks, options);
  CHECK(fs.stat("/run/new/a/.metadata"));
}

TEST_CASE("under verify a damaged manifest is refused") {
  MemoryFileSystem fs;
  SaveOptions options;
  options.file_system = &fs;
  LiveState state;
  state.add("x", {DType::kFloat32, {3}, {}, memory});
  const auto ranks = single_rank();
  save("/run/a", state, *ranks, options);
  LoadPolicy policy;
  policy.file_system = &fs;
  policy.verify = true;
  load("/run/a", state, *ranks, policy);
  Bytes seal = fs.read_file("/run/a/tessera.manifest.json");
  seal[seal.size() / 2] ^= std::byte{1};
  fs.write_file("/run/a/tessera.manifest.json", seal);
  CHECK_THROWS_WITH(load("/run/a", state, *ranks, policy), Contains("tessera.manifest.json"));
  policy.verify = false;  // it is told
  CHECK(!load("/run/a", state, *ranks, policy).notes.empty());
}

TEST_CASE("a stage that a save left is named, with what helps against it") {
  MemoryFileSystemOptions lockless;  // elsewhere it is known to be nobody's, and removed
  lockless.has_locks = false;
  MemoryFileSystem fs(lockless);
  fs.make_directories("/run");
  LiveState state;
  state.add("x", {DType::kFloat32, {3}, {}, memory});
  const auto save_over = [&](FileSystem& disk) {
    SaveOptions options;
    options.file_system = &disk;
    const auto ranks = single_rank();
    try {
      save("/run/a", state, *ranks, options);
      return Status();
    } catch (const Error& error) {
      return error.status();
    }
  };
  FaultyFileSystem faulty(
      fs, {.at = 1, .sticky = true, .ops = io_op_bit(IoOp::kWrite) | io_op_bit(IoOp::kRemoveTree)});
  REQUIRE(save_over(faulty).code == Code::kIo);
  const auto left = fs.open_directory("/run")->list();
  REQUIRE(left.size() == 1);
  const Status refused = save_over(fs);
  CHECK(refused.code == Code::kAlreadyExists);
  CHECK_THAT(refused.message,
             Contains("another run may be writing /run/a") && Contains("/run/" + left[0].name));
  CHECK(refused.hint == "if none is, remove the stage");
  fs.remove_tree("/run/" + left[0].name);
  CHECK(save_over(fs).ok());
  CHECK(save_over(fs).hint == "save elsewhere, or set SaveOptions::force to replace it");
}

TEST_CASE("ranks that ask for different things are all refused, and nothing is loaded") {
  MemoryFileSystem fs;
  std::vector<std::vector<float>> values(3, std::vector<float>(40, 1));
  const auto state_of = [&](RankGroup& ranks) {
    LiveState state;
    float* data = values[static_cast<std::size_t>(ranks.rank())].data();
    state.add("a", {DType::kFloat32, {40}, {}, data});
    return state;
  };
  require_quiet(on_ranks(3, [&](RankGroup& ranks) {
    SaveOptions options;
    options.file_system = &fs;
    save("/run/a", state_of(ranks), ranks, options);
  }));
  for (std::vector<float>& each : values) each.assign(each.size(), 7);
  const auto check = [&](const std::string& says, const std::function<void(LoadPolicy&)>& change) {
    const auto thrown = on_ranks(3, [&](RankGroup& ranks) {
      LoadPolicy policy;
      policy.file_system = &fs;
      if (ranks.rank() == 1) change(policy);
      load("/run/a", state_of(ranks), ranks, policy);
    });
    for (const std::string& message : thrown)
      CHECK_THAT(message, Contains("ranks ask for different " + says));
    for (const std::vector<float>& each : values) CHECK(each == std::vector<float>(40, 7));
  };
  check("LoadPolicy::safety: rank 0 for \"kAside\", rank 1 for \"kInPlace\"",
        [](LoadPolicy& policy) { policy.safety = LoadSafety::kInPlace; });
  check("LoadPolicy::model: rank 0 for \"kStrict\", rank 1 for \"kSkip\"",
        [](LoadPolicy& policy) { policy.model = PartPolicy::kSkip; });
  check("LoadPolicy::allow_cast", [](LoadPolicy& policy) { policy.allow_cast = false; });
}

TEST_CASE("ranks that make different calls are told so, and none waits for ever") {
  MemoryFileSystem fs;
  const auto call_two = [&](const std::function<void(RankGroup&)>& first,
                            const std::function<void(RankGroup&)>& second) {
    return on_ranks(2, [&](RankGroup& ranks) { (ranks.rank() == 0 ? first : second)(ranks); });
  };
  const auto state_of_all = [] {
    LiveState state;
    state.add("w", {DType::kFloat32, {3}, {}, memory});
    return state;
  };
  SaveOptions options;
  options.file_system = &fs;
  LoadPolicy policy;
  policy.file_system = &fs;
  const auto saves = [&](RankGroup& ranks) { save("/run/a", state_of_all(), ranks, options); };
  const auto saves_async = [&](RankGroup& ranks) {
    save_async("/run/a", state_of_all(), ranks, options).wait();
  };
  const auto loads = [&](RankGroup& ranks) { load("/run/a", state_of_all(), ranks, policy); };
  for (const std::string& message : call_two(saves_async, saves))
    CHECK_THAT(message, Contains("ranks make different calls: rank 0 save_async, rank 1 save"));
  for (const std::string& message : call_two(loads, saves_async))
    CHECK_THAT(message, Contains("ranks make different calls: rank 0 load, rank 1 save_async"));
  CHECK_FALSE(fs.stat("/run/a"));
}

}  // namespace live_refusals_test
