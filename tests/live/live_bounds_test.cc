// What a job hands over that cannot be right, and what its own callbacks throw.
#include <tessera/live/load.h>
#include <tessera/live/save.h>
#include <tessera/storage/memory_file_system.h>

#include <catch2/catch.hpp>
#include <exception>
#include <limits>
#include <vector>

#include "lib/live/shared_memory.h"
#include "tests/support/live_job.h"

namespace live_bounds_test {

using namespace tessera;
using namespace tessera::test;
using Catch::Matchers::Contains;

namespace {

struct Saved {
  MemoryFileSystem fs;
  std::vector<float> a = {1, 2, 3, 4}, b = {5, 6, 7, 8};

  Saved() {
    fs.make_directories("/run");
    require_quiet(on_ranks(1, [&](RankGroup& ranks) {
      LiveState state;
      state.add("a", {DType::kFloat32, {4}, {}, a.data()});
      state.add("b", {DType::kFloat32, {4}, {}, b.data()});
      state.add_value("epoch", Value::integer(3));
      SaveOptions options;
      options.file_system = &fs;
      save("/run/s", state, ranks, options);
    }));
  }

  /// What a load into `first` and `second` throws.
  std::string load_into(float* first, float* second, bool verify, LoadSafety safety) {
    return on_ranks(1, [&](RankGroup& ranks) {
      LiveState state;
      state.add("a", {DType::kFloat32, {4}, {}, first});
      state.add("b", {DType::kFloat32, {4}, {}, second});
      state.add_value("epoch", Value::integer(0));
      LoadPolicy policy;
      policy.file_system = &fs;
      policy.verify = verify;
      policy.safety = safety;
      load("/run/s", state, ranks, policy);
    })[0];
  }
};

/// The status of the error that a save of `tensor` throws.
Status save_refusal(const TensorView& view) {
  MemoryFileSystem fs;
  fs.make_directories("/run");
  Status status;
  require_quiet(on_ranks(1, [&](RankGroup& ranks) {
    LiveState state;
    SaveOptions options;
    options.file_system = &fs;
    try {
      state.add("w", view);
      save("/run/s", state, ranks, options);
    } catch (const Error& error) {
      status = error.status();
    }
  }));
  return status;
}

struct JobsOwn {
  int number = 0;
};

}  // namespace

TEST_CASE("a load that verifies refuses targets that share memory") {
  Saved saved;
  for (const LoadSafety safety :
       {LoadSafety::kAside, LoadSafety::kReadTwice, LoadSafety::kInPlace}) {
    std::vector<float> memory(8, -1);
    for (float* second : {memory.data(), memory.data() + 2}) {
      const std::string thrown = saved.load_into(memory.data(), second, true, safety);
      CHECK_THAT(thrown, Contains("shares memory with \"b\""));
      CHECK(memory == std::vector<float>(8, -1));
    }
    CHECK(saved.load_into(memory.data(), memory.data() + 4, true, safety).empty());
    CHECK(memory == std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8});
    CHECK(saved.load_into(memory.data(), memory.data(), false, safety).empty());
  }
}

TEST_CASE("columns of one array beside each other share nothing, and one that reaches over does") {
  std::vector<float> memory(8 * 8);
  const auto columns = [&](std::int64_t begin, std::int64_t count) {
    return LivePiece{Chunk::whole_of({{0, begin}, {8, count}}), memory.data() + begin, {8, 1}};
  };
  const LivePiece left = columns(0, 4), right = columns(4, 4), middle = columns(3, 2);
  const std::vector<NamedPiece> apart{{"left", &left, DType::kFloat32},
                                      {"right", &right, DType::kFloat32}};
  CHECK_FALSE(first_shared(apart));
  const std::vector<NamedPiece> over{{"left", &left, DType::kFloat32},
                                     {"middle", &middle, DType::kFloat32}};
  REQUIRE(first_shared(over));
  CHECK(first_shared(over)->first == "left");
  CHECK(first_shared(over)->second == "middle");
}

TEST_CASE("strides whose bytes leave the address space are refused") {
  std::vector<float> memory(4);
  for (const std::int64_t stride :
       {std::numeric_limits<std::int64_t>::max(), std::int64_t{1} << 61, std::int64_t{1} << 60}) {
    const Status status = save_refusal({DType::kFloat32, {2}, {stride}, memory.data()});
    CHECK(status.code == Code::kInvalidArgument);
    CHECK_THAT(status.message, Contains("out of reach"));
  }
  CHECK(save_refusal({DType::kFloat32, {2}, {3}, memory.data()}).ok());
}

TEST_CASE("a number that is no type is an error of the caller") {
  std::vector<float> memory(4);
  const Status status = save_refusal({static_cast<DType>(250), {4}, {}, memory.data()});
  CHECK(status.code == Code::kInvalidArgument);
  CHECK_THAT(status.message, Contains("250"));
}

TEST_CASE("what a callback throws is the job's, and says which callback it was") {
  Saved saved;
  using Set = void (*)(LiveState&, int);
  const std::pair<const char*, Set> callbacks[] = {
      {"LiveState::materialise",
       [](LiveState& s, int n) {
         s.materialise = [n](LiveState&, const Manifest&) { throw JobsOwn{n}; };
       }},
      {"LiveState::check_value",
       [](LiveState& s, int n) { s.check_value = [n](const StateEntry&) { throw JobsOwn{n}; }; }},
      {"LiveState::check_loaded",
       [](LiveState& s, int n) {
         s.check_loaded = [n](const std::vector<std::string>&) { throw JobsOwn{n}; };
       }},
      {"LiveState::on_value",
       [](LiveState& s, int n) { s.on_value = [n](const StateEntry&) { throw JobsOwn{n}; }; }},
      {"LiveState::after_load", [](LiveState& s, int n) {
         s.after_load = [n](const std::vector<std::string>&) { throw JobsOwn{n}; };
       }}};
  for (const auto& [name, set] : callbacks) {
    INFO(name);
    int own = 0;
    Status status;
    require_quiet(on_ranks(1, [&](RankGroup& ranks) {
      std::vector<float> a(4), b(4);
      LiveState state;
      state.add("a", {DType::kFloat32, {4}, {}, a.data()});
      state.add("b", {DType::kFloat32, {4}, {}, b.data()});
      state.add_value("epoch", Value::integer(0));
      set(state, 42);
      LoadPolicy policy;
      policy.file_system = &saved.fs;
      try {
        load("/run/s", state, ranks, policy);
      } catch (const Error& error) {
        status = error.status();
        try {
          std::rethrow_if_nested(error);
        } catch (const JobsOwn& thrown) {
          own = thrown.number;
        }
      }
    }));
    CHECK(status.code == Code::kInvalidArgument);
    CHECK_THAT(status.message, Contains(name));
    CHECK(own == 42);
  }
}

TEST_CASE("a callback of a save is named with what it said, on every rank") {
  MemoryFileSystem fs;
  fs.make_directories("/run");
  const auto thrown = on_ranks(2, [&](RankGroup& ranks) {
    std::vector<float> memory(4);
    LiveState state;
    state.add("w", {DType::kFloat32, {4}, {}, memory.data()});
    if (ranks.rank() == 1) state.before_save = [] { throw std::runtime_error("the GPU is gone"); };
    SaveOptions options;
    options.file_system = &fs;
    save("/run/s", state, ranks, options);
  });
  for (const std::string& message : thrown)
    CHECK_THAT(message, Contains("LiveState::before_save") && Contains("the GPU is gone") &&
                            !Contains("internal"));
}

TEST_CASE("what a callback of a save throws comes back as itself, on the rank that threw it") {
  using Set = void (*)(LiveState&);
  const std::pair<const char*, Set> callbacks[] = {
      {"LiveState::before_save", [](LiveState& s) { s.before_save = [] { throw JobsOwn{7}; }; }},
      {"LiveState::agreed",
       [](LiveState& s) { s.agreed = []() -> std::vector<Agreement> { throw JobsOwn{7}; }; }}};
  for (const auto& [name, set] : callbacks)
    for (const bool in_background : {false, true}) {
      INFO(name << " " << in_background);
      MemoryFileSystem fs;
      fs.make_directories("/run");
      int own[2] = {0, 0};
      Status statuses[2];
      require_quiet(on_ranks(2, [&, set = set](RankGroup& ranks) {
        std::vector<float> memory(4);
        LiveState state;
        state.add("w", {DType::kFloat32, {4}, {}, memory.data()});
        if (ranks.rank() == 1) set(state);
        SaveOptions options;
        options.file_system = &fs;
        const auto at = static_cast<std::size_t>(ranks.rank());
        try {
          in_background ? save_async("/run/s", state, ranks, options).wait()
                        : save("/run/s", state, ranks, options);
        } catch (const Error& error) {
          statuses[at] = error.status();
          try {
            std::rethrow_if_nested(error);
          } catch (const JobsOwn& thrown) {
            own[at] = thrown.number;
          }
        }
      }));
      for (const Status& status : statuses) CHECK_THAT(status.message, Contains(name));
      CHECK(own[0] == 0);
      CHECK(own[1] == 7);
    }
}

TEST_CASE("an error of ours passes through a callback as it is") {
  Saved saved;
  Status status;
  require_quiet(on_ranks(1, [&](RankGroup& ranks) {
    LiveState state;
    state.on_value = [](const StateEntry&) { fail(Code::kUnsupported, "no such epoch"); };
    state.add_value("epoch", Value::integer(0));
    LoadPolicy policy;
    policy.file_system = &saved.fs;
    policy.model = PartPolicy::kSkip;
    policy.other = PartPolicy::kAllowBoth;
    try {
      load("/run/s", state, ranks, policy);
    } catch (const Error& error) {
      status = error.status();
    }
  }));
  CHECK(status.code == Code::kUnsupported);
  CHECK(status.message == "no such epoch");
}

}  // namespace live_bounds_test
