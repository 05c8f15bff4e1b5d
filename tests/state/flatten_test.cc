#include <tessera/base/error.h>
#include <tessera/state/value.h>

#include <catch2/catch.hpp>
#include <random>
#include <string>

#include "lib/state/key_text.h"

namespace flatten_test {

using namespace tessera;
using Kind = Value::Kind;

namespace {

Value text(const char* s) { return Value::string(s); }
Value number(std::int64_t i) { return Value::integer(i); }
Value tensor() { return Value::tensor(0); }
Value tuple(ValueList items) { return Value::list(std::move(items), Kind::kTuple); }

StateDict flat(const Value& root) {
  ValueBudget budget(1'000'000);
  return flatten(root, budget);
}
StateDict flat_old(const Value& root) {
  ValueBudget budget(1'000'000);
  return flatten_before_2_4(root, budget);
}

std::vector<std::string> names(const StateDict& state) {
  std::vector<std::string> out;
  for (const StateEntry& entry : state.entries) out.push_back(entry.name);
  return out;
}
using Names = std::vector<std::string>;

std::string corrupt_message(const Value& root, Code code = Code::kCorrupt) {
  try {
    flat(root);
  } catch (const Error& error) {
    CHECK(error.code() == code);
    return error.status().message;
  }
  FAIL("accepted");
  return {};
}

/// A training state as optimizers make it.
Value optimizer_state() {
  const Value group = Value::dict({{text("lr"), Value::real(0.1)},
                                   {text("betas"), tuple({Value::real(0.9), Value::real(0.95)})},
                                   {text("params"), Value::list({number(0), number(1)})}});
  const Value state = Value::dict(
      {{number(0), Value::dict({{text("step"), tensor()}, {text("exp_avg"), tensor()}})}});
  return Value::dict({{text("state"), state}, {text("param_groups"), Value::list({group})}});
}

Value nested_lists(int depth, Value value) {
  for (int i = 0; i < depth; ++i) value = Value::list({value});
  return value;
}

}  // namespace

TEST_CASE("dicts are entered, lists only for a tensor or a dict, tuples never") {
  const Value root =
      Value::dict({{text("opt"), optimizer_state()},
                   {text("plain"), Value::list({number(1), Value::list({})})},
                   {text("deep"), Value::list({Value::list({Value::list({tensor()}), number(2)})})},
                   {text("tuple"), tuple({tensor()})},
                   {text("empty_list"), Value::list({})},
                   {text("empty"), Value::dict({})},
                   {text("size"), Value::size({2})}});
  CHECK(names(flat(root)) == Names{"opt.state.0.step", "opt.state.0.exp_avg",
                                   "opt.param_groups.0.lr", "opt.param_groups.0.betas",
                                   "opt.param_groups.0.params", "plain", "deep.0.0.0", "deep.0.1",
                                   "tuple", "empty_list", "size"});
}

TEST_CASE("before 2.4 a dict is entered only for a tensor or a non-terminal container") {
  const Value root =
      Value::dict({{text("opt"), optimizer_state()},
                   {text("meta"), Value::dict({{text("epoch"), number(1)}})},
                   {text("empty"), Value::dict({})},
                   {text("list"), Value::list({Value::dict({{text("w"), tensor()}}), number(3)})}});
  CHECK(names(flat_old(root)) == Names{"opt.state.0.step", "opt.state.0.exp_avg",
                                       "opt.param_groups", "meta", "empty", "list.0.w", "list.1"});
  // The top is entered even where it would be terminal.
  CHECK(names(flat_old(Value::dict({{text("epoch"), number(1)}}))) == Names{"epoch"});
}

TEST_CASE("a bare top object has an empty path and an empty name") {
  const StateDict state = flat(tensor());
  REQUIRE(state.entries.size() == 1);
  CHECK(state.entries[0].name.empty());
  CHECK(state.entries[0].path.empty());
  CHECK(unflatten(state) == tensor());
  CHECK(names(flat(Value::list({tensor(), tensor()}))) == Names{"0", "1"});
  CHECK(names(flat(Value::list({number(1)}))) == Names{""});
}

TEST_CASE("two leaves with one name are refused, naming both") {
  const Value root =
      Value::dict({{text("a.b"), number(1)}, {text("a"), Value::dict({{text("b"), number(2)}})}});
  const std::string message = corrupt_message(root, Code::kUnsupported);
  CHECK(message.find("\"a.b\"") != std::string::npos);
  CHECK(message.find("root[\"a.b\"]") != std::string::npos);
  CHECK(message.find("root[\"a\"][\"b\"]") != std::string::npos);
  const Value keys = Value::dict({{number(1), number(1)}, {text("1"), number(2)}});
  CHECK(corrupt_message(keys, Code::kUnsupported).find("root[1] and root[\"1\"]") !=
        std::string::npos);
  // A container's name may be a leaf's: their leaves' names differ.
  CHECK(names(flat(Value::dict(
            {{number(1), number(1)}, {text("1"), Value::dict({{text("x"), number(2)}})}}))) ==
        Names{"1", "1.x"});
}

TEST_CASE("keys that are no strings are named by Python's str()") {
  CHECK(key_text(Value()) == "None");
  CHECK(key_text(Value::boolean(true)) == "True");
  CHECK(key_text(Value::real(1.5)) == "1.5");
  CHECK(key_text(Value::real(2)) == "2.0");
  CHECK(key_text(Value::real(-0.0)) == "-0.0");
  CHECK(key_text(Value::real(1e16)) == "1e+16");
  CHECK(key_text(Value::real(1e15)) == "1000000000000000.0");
  CHECK(key_text(Value::real(1e-5)) == "1e-05");
  CHECK(key_text(Value::real(0.0001)) == "0.0001");
  CHECK(key_text(Value::real(std::numeric_limits<double>::infinity())) == "inf");
  CHECK(key_text(tuple({number(1), text("a")})) == "(1, 'a')");
  CHECK(key_text(tuple({number(1)})) == "(1,)");
  CHECK(key_text(tuple({})) == "()");
  CHECK(key_text(text("it's")) == "it's");
  CHECK(key_text(tuple({text("it's")})) == "(\"it's\",)");
  CHECK(key_text(Value::dtype(DType::kFloat32)) == "torch.float32");
}

TEST_CASE("what paths cannot restore is noted, and restored") {
  const Value root = Value::dict(
      {{text("model"), Value::ordered_dict({{text("w"), tensor()}},
                                           Value::dict({{text("_metadata"), number(2)}}))},
       {text("first"), number(1)},
       {text("empty"), Value::dict({})},
       {text("empty_ordered"), Value::ordered_dict({}, Value())},
       {text("keys"), Value::dict({{Value(), number(1)},
                                   {Value::real(0.5), Value::dict({{number(7), number(8)}})},
                                   {tuple({number(1), number(2)}), tensor()},
                                   {text("x"), number(2)}})},
       {text("list"),
        Value::list({Value::dict({}), tensor(), Value::dict({{text("y"), Value()}})})},
       {text("last"), number(9)}});
  const StateDict state = flat(root);
  CHECK(state.containers.size() == 5);
  CHECK(unflatten(state) == root);
}

TEST_CASE("an ordered dict with other keys and attributes comes back") {
  const Value root =
      Value::ordered_dict({{Value::boolean(true), number(1)}, {text("a"), tensor()}}, text("kept"));
  CHECK(unflatten(flat(root)) == root);
}

TEST_CASE("random trees come back from their leaves") {
  std::mt19937_64 random(29);
  INFO("seed 29");
  const auto tree = [&random](auto&& self, int depth) -> Value {
    const auto pick = random() % (depth == 0 ? 5 : 9);
    const auto size = random() % 4;
    if (pick == 0) return tensor();
    if (pick == 1) return number(static_cast<std::int64_t>(random() % 100));
    if (pick == 2) return text("leaf");
    if (pick == 3) return Value();
    if (pick == 4) return tuple({tensor(), number(1)});
    if (pick == 5) {
      ValueList items;
      for (std::size_t i = 0; i < size; ++i) items.push_back(self(self, depth - 1));
      return Value::list(std::move(items));
    }
    ValueDict items;
    for (std::size_t i = 0; i < size; ++i) {
      const Value key = random() % 3 == 0 ? number(static_cast<std::int64_t>(i))
                                          : text(("k" + std::to_string(i)).c_str());
      items.emplace_back(key, self(self, depth - 1));
    }
    if (pick == 6)
      return Value::ordered_dict(std::move(items), random() % 2 == 0 ? Value() : number(4));
    return Value::dict(std::move(items));
  };
  int leaves = 0;
  for (int i = 0; i < 4000; ++i) {
    const Value root = tree(tree, 4);
    const StateDict state = flat(root);
    leaves += static_cast<int>(state.entries.size());
    REQUIRE(unflatten(state) == root);
    for (const StateEntry& entry : state.entries) REQUIRE(entry.name == dotted(entry.path));
    REQUIRE(unflatten(flat_old(root)) == root);
  }
  CHECK(leaves > 4000);
}

TEST_CASE("shared nodes end in a clear error, not in time or memory") {
  Value value = number(1);
  for (int i = 0; i < 60; ++i) value = Value::dict({{text("a"), value}, {text("b"), value}});
  CHECK(corrupt_message(value).find("expands to more than") != std::string::npos);
  Value lists = tensor();
  for (int i = 0; i < 60; ++i) lists = Value::list({lists, lists});
  CHECK(corrupt_message(Value::dict({{text("l"), lists}})).find("expands") != std::string::npos);
  // Shared lists without tensors are one leaf each.
  Value plain = number(1);
  for (int i = 0; i < 60; ++i) plain = Value::list({plain, plain});
  CHECK(names(flat(Value::dict({{text("l"), plain}}))) == Names{"l"});
  // Long keys count for what they take.
  const std::string key(100'000, 'k');
  ValueDict wide;
  for (int i = 0; i < 1000; ++i) wide.emplace_back(number(i), number(i));
  CHECK(corrupt_message(Value::dict({{Value::string(key), Value::dict(wide)}})).find("expands") !=
        std::string::npos);
}

TEST_CASE("what a tree may expand to follows from what it is made of") {
  // Before, dicts that double ended only at the caller's limit: gigabytes out of a kilobyte.
  Value value = number(1);
  for (int i = 0; i < 60; ++i) value = Value::dict({{text("a"), value}, {text("b"), value}});
  ValueBudget large(std::uint64_t{1} << 40);
  CHECK_THROWS_WITH(flatten(value, large), Catch::Contains("expands to more than 67"));
  // A part that stands in several places is no bomb, nor are many leaves of their own.
  ValueDict places, leaves;
  const Value shared = Value::dict({{text("lr"), number(1)}, {text("eps"), number(2)}});
  for (int i = 0; i < 10'000; ++i) places.emplace_back(number(i), shared);
  for (int i = 0; i < 200'000; ++i) leaves.emplace_back(number(i), number(i));
  CHECK(flatten(Value::dict(places), large).entries.size() == 20'000);
  CHECK(flatten(Value::dict(leaves), large).entries.size() == 200'000);
}

TEST_CASE("depth is limited in both directions") {
  CHECK(flat(Value::dict({{text("l"), nested_lists(150, tensor())}})).entries.size() == 1);
  CHECK(corrupt_message(Value::dict({{text("l"), nested_lists(400, tensor())}})).find("deeper") !=
        std::string::npos);
  StateDict state;
  state.entries.push_back({"deep", Path(5000, PathItem{PathItem::Kind::kKey, 0, "a"}), number(1)});
  CHECK_THROWS_AS(unflatten(state), Error);
}

TEST_CASE("gaps in a list are None, and bounded") {
  StateDict state;
  state.entries.push_back(
      {"l.2", {{PathItem::Kind::kKey, 0, "l"}, {PathItem::Kind::kIndex, 2, {}}}, tensor()});
  CHECK(unflatten(state) == Value::dict({{text("l"), Value::list({Value(), Value(), tensor()})}}));
  for (const std::int64_t index :
       {std::int64_t{2'000'000}, std::numeric_limits<std::int64_t>::max(), std::int64_t{-1}}) {
    state.entries[0].path[1].index = index;
    try {
      unflatten(state);
      FAIL("accepted");
    } catch (const Error& error) {
      CHECK(error.code() == Code::kCorrupt);
    }
  }
}

TEST_CASE("paths that contradict each other are corrupt") {
  const PathItem a{PathItem::Kind::kKey, 0, "a"};
  const PathItem b{PathItem::Kind::kKey, 0, "b"};
  const PathItem zero{PathItem::Kind::kIndex, 0, {}};
  const std::vector<std::pair<Path, Path>> pairs = {{Path{a}, Path{a, b}},
                                                    {Path{a, b}, Path{a}},
                                                    {Path{a, b}, Path{a, zero}},
                                                    {Path{a}, Path{a}},
                                                    {Path{}, Path{a}}};
  for (const auto& [first, second] : pairs) {
    StateDict state;
    state.entries.push_back({"1", first, number(1)});
    state.entries.push_back({"2", second, number(2)});
    try {
      unflatten(state);
      FAIL("accepted");
    } catch (const Error& error) {
      CHECK(error.code() == Code::kCorrupt);
    }
  }
  StateDict noted;
  noted.entries.push_back({"a", Path{a}, number(1)});
  noted.containers.push_back({Path{a}, Kind::kOrderedDict, Value()});
  CHECK_THROWS_AS(unflatten(noted), Error);
}

TEST_CASE("nothing flattened is an empty dict") { CHECK(unflatten({}) == Value::dict({})); }

}  // namespace flatten_test
