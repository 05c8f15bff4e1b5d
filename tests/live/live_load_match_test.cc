// Which stored entry a live one is filled from, in what type, and what is missing or left over.
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <memory>

#include "tests/support/live_saved.h"

namespace live_load_match_test {

using namespace tessera;
using namespace tessera::test;
using Catch::Matchers::Contains;

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

TEST_CASE("integers of 64 bits without a sign are read as they are") {
  MemoryFileSystem fs;
  static std::uint64_t huge = (std::uint64_t{1} << 63) + 5;
  static std::uint64_t power = std::uint64_t{1} << 63;
  static std::int64_t largest = INT64_MAX, negative = -1;
  save_one(fs, [](LiveState& state) {
    state.add("scalar", {DType::kUInt64, {}, {}, &huge});
    state.add("power", {DType::kUInt64, {}, {}, &power});
    state.add_value("value", Value::big_integer("9223372036854775813"));
    state.add("largest", {DType::kInt64, {}, {}, &largest});
    state.add("negative", {DType::kInt64, {}, {}, &negative});
  });
  LoadPolicy policy = loading(fs);
  policy.model = policy.other = PartPolicy::kAllowUnexpected;
  Value value;
  std::uint64_t vector = 0, number = 0;
  float real = 0;
  LiveState state;
  state.on_value = [&](const StateEntry& entry) { value = entry.value; };
  state.add_value("scalar", Value());
  state.add("value", {DType::kUInt64, {}, {}, &number});
  state.add("power", {DType::kFloat32, {}, {}, &real});
  load_one(state, policy);
  CHECK(value == Value::big_integer("9223372036854775813"));
  CHECK(number == huge);
  CHECK(real == 9223372036854775808.0f);
  LiveState reshaped;
  reshaped.add("scalar", {DType::kUInt64, {1}, {}, &vector});
  load_one(reshaped, policy);
  CHECK(vector == huge);
  // What the live type does not hold is refused, where the cast would wrap or round as well.
  const auto refused = [&](const char* name, DType dtype) {
    std::uint64_t memory = 3;
    LiveState narrow;
    narrow.add(name, {dtype, {}, {}, &memory});
    CHECK_THROWS_WITH(load_one(narrow, policy), Contains(name) && Contains("holds exactly"));
    CHECK(memory == 3);
  };
  refused("scalar", DType::kInt64);
  refused("value", DType::kInt64);
  refused("scalar", DType::kFloat32);
  refused("largest", DType::kFloat32);
  refused("negative", DType::kUInt64);
}

TEST_CASE("a number of a float tensor that a whole number cannot hold is refused") {
  MemoryFileSystem fs;
  static float large = 300, negative = -1;
  save_one(fs, [](LiveState& state) {
    state.add("large", {DType::kFloat32, {}, {}, &large});
    state.add("negative", {DType::kFloat32, {}, {}, &negative});
    state.add_value("zero", Value::real(-0.0));
  });
  LoadPolicy policy = loading(fs);
  policy.model = policy.other = PartPolicy::kAllowUnexpected;
  std::uint8_t small = 1;
  std::uint64_t natural = 1;
  std::int64_t zero = 1;
  const auto load_into = [&](const char* name, DType dtype, void* data) {
    LiveState state;
    state.add(name, {dtype, {}, {}, data});
    load_one(state, policy);
  };
  CHECK_THROWS_WITH(load_into("large", DType::kUInt8, &small),
                    Contains("holds exactly, found 300"));
  CHECK_THROWS_WITH(load_into("negative", DType::kUInt64, &natural), Contains("found -1"));
  CHECK((small == 1 && natural == 1));
  load_into("zero", DType::kInt64, &zero);
  CHECK(zero == 0);
}

TEST_CASE(
    "single numbers of another type are cast and listed, or mismatched, whatever their shape") {
  MemoryFileSystem fs;
  static double large = 70000, minus_zero = -0.0;
  static float seven = 7;
  save_one(fs, [](LiveState& state) {
    state.add("wide", {DType::kFloat64, {1}, {}, &large});
    state.add("step", {DType::kFloat32, {}, {}, &seven});
    state.add("same", {DType::kFloat32, {1}, {}, &seven});
    state.add("zero", {DType::kFloat64, {}, {}, &minus_zero});
    state.add_value("value", Value::real(-0.0));
  });
  std::uint16_t half = 1;
  std::int64_t step = 1;
  float same = 1, zero = 1, value = 1;
  LiveState state;
  state.add("wide", {DType::kFloat16, {}, {}, &half});
  state.add("step", {DType::kInt64, {}, {}, &step});
  state.add("same", {DType::kFloat32, {}, {}, &same});
  state.add("zero", {DType::kFloat32, {1}, {}, &zero});
  state.add("value", {DType::kFloat32, {}, {}, &value});
  const auto names = [](const std::vector<LoadDifference>& list) {
    std::vector<std::string> out;
    for (const LoadDifference& each : list) out.push_back(each.name);
    return out;
  };
  const std::vector<std::string> of_other_types = {"wide", "step", "zero"};
  LoadPolicy policy = loading(fs);
  policy.allow_cast = false;
  CHECK_THROWS_WITH(load_one(state, policy), Contains("\"wide\"") && Contains("float64 [1]"));
  policy.allow_mismatched = true;
  LoadResult result = load_one(state, policy);
  CHECK(names(result.mismatched) == of_other_types);
  CHECK(result.cast.empty());
  CHECK((half == 1 && step == 1 && zero == 1));
  CHECK(same == 7);
  result = load_one(state, loading(fs));
  CHECK(names(result.cast) == of_other_types);
  CHECK(result.mismatched.empty());
  CHECK(half == 0x7c00);  // infinity, as a cast of any tensor
  CHECK(step == 7);
  CHECK((zero == 0 && std::signbit(zero)));
  CHECK((value == 0 && std::signbit(value)));
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

}  // namespace live_load_match_test
