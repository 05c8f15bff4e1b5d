// A save writes nothing that no load could read: it is refused, naming the entry, and what was
// saved before stays.
#include <tessera/base/error.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <limits>

#include "tests/support/live_job.h"
#include "tests/support/live_saved.h"

namespace live_readable_test {

using namespace tessera;
using namespace tessera::test;
using Catch::Matchers::Contains;

namespace {

Value nested(int levels) {
  Value value = Value::list({});
  for (int level = 1; level < levels; ++level) value = Value::list({value});
  return value;
}

/// Saves a good step 1, then step 2 with what `add` adds, keeping one: step 2 is to be refused.
void check_refused(const std::string& says, const std::function<void(LiveState&)>& add) {
  MemoryFileSystem fs;
  const auto ranks = single_rank();
  SaveOptions options = saving(fs);
  options.keep_last = 1;
  options.update_latest = true;
  LiveState state;
  state.add_value("epoch", Value::integer(1));
  save("/run/step_1", state, *ranks, options);
  const auto before = fs.contents();
  add(state);
  try {
    save("/run/step_2", state, *ranks, options);
    FAIL("saved: " << says);
  } catch (const Error& error) {
    CHECK(error.code() == Code::kInvalidArgument);
    CHECK_THAT(error.what(), Contains(says) && Contains("no load could read"));
  }
  CHECK(fs.contents() == before);
}

}  // namespace

TEST_CASE("values that no load could read are refused, and the checkpoint before stays") {
  const Value latin1 = Value::string("/data/caf\xe9");
  for (const ValueScope scope : {ValueScope::kShared, ValueScope::kPerRank}) {
    check_refused("\"data\"", [&](LiveState& state) { state.add_value("data", latin1, scope); });
    check_refused("\"deep\"",
                  [&](LiveState& state) { state.add_value("deep", nested(250), scope); });
  }
  check_refused("\"paths\"", [&](LiveState& state) {
    state.add_value("paths", Value::dict({{Value::string("train"), Value::list({latin1})}}));
  });
  check_refused("\"keys\"", [&](LiveState& state) {
    state.add_value("keys",
                    Value::list({Value::dict({{latin1, Value::integer(1)}})}, Value::Kind::kTuple));
  });
}

TEST_CASE("names that no load could read are refused, and the checkpoint before stays") {
  check_refused("caf\\xe9",
                [](LiveState& state) { state.add_value("caf\xe9", Value::integer(1)); });
  check_refused("found 201", [](LiveState& state) {
    state.add_value(Path(201, key_item("a")), Value::integer(1));
  });
  check_refused("found 201", [](LiveState& state) {
    state.add_value(Path(200, key_item("a")), Value::integer(1), ValueScope::kPerRank);
  });
  check_refused("table.-1", [](LiveState& state) {
    state.add_value(Path{key_item("table"), int_key_item(-1)}, Value::integer(1));
  });
}

TEST_CASE("a value is looked at where a plan is used again as well") {
  MemoryFileSystem fs;
  const auto ranks = single_rank();
  const auto save_note = [&](const std::string& path, const std::string& note) {
    LiveState state;
    state.add_value("note", Value::string(note));
    return save(path, state, *ranks, saving(fs)).plan_reused;
  };
  save_note("/run/a", "cafe");
  CHECK(save_note("/run/b", "cafi"));
  CHECK_THROWS_WITH(save_note("/run/c", "caf\xe9"),
                    Contains("\"note\"") && Contains("no load could read"));
  CHECK_FALSE(fs.stat("/run/c"));
}

TEST_CASE("what is just within the reader's limits is saved and comes back") {
  MemoryFileSystem fs;
  const Value surrogate = Value::string("\xed\xa0\x80");  // as Python's surrogatepass
  save_one(fs, [&](LiveState& state) {
    state.add_value("deep", nested(200));
    state.add_value("text", surrogate);
  });
  LiveState state;
  state.add_value("deep", Value());
  state.add_value("text", Value());
  const LoadResult result = load_one(state, loading(fs));
  REQUIRE(result.values.size() == 2);
  CHECK(result.values[0].value == nested(200));
  CHECK(result.values[1].value == surrogate);
}

TEST_CASE("a shared NaN is equal to any other, at any depth, and a number is not") {
  const auto nan_of = [](std::uint64_t bits) {
    double real = 0;
    std::memcpy(&real, &bits, sizeof real);
    return Value::real(real);
  };
  const Value one = nan_of(0x7ff8000000000000), other = nan_of(0xfff8000000000123);
  const auto tree = [](const Value& nan) {
    return Value::dict({{Value::string("a"), Value::list({nan, nan})}});
  };
  const auto save_two = [&](const Value& first, const Value& second) {
    MemoryFileSystem fs;
    return on_ranks(2, [&](RankGroup& ranks) {
      LiveState state;
      state.add_value("loss", ranks.rank() == 0 ? first : second);
      save("/run/a", state, ranks, saving(fs));
    });
  };
  require_quiet(save_two(one, other));
  require_quiet(save_two(tree(one), tree(other)));
  for (const std::string& message : save_two(tree(one), tree(Value::real(1))))
    CHECK_THAT(message, Contains("ranks disagree on its value"));
}

}  // namespace live_readable_test
