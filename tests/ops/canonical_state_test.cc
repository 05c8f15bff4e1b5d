// States under the names of today's rule: whatever rule flattened them and whatever a format of
// leaves lost of their containers.
#include "lib/ops/inspect/canonical_state.h"

#include <fmt/format.h>
#include <tessera/encoding/json.h>

#include <catch2/catch.hpp>
#include <map>
#include <random>

namespace canonical_state_test {

using namespace tessera;

namespace {

constexpr std::uint64_t kManyValues = 1 << 20;

class RandomTree {
 public:
  explicit RandomTree(std::uint64_t seed) : random_(seed) {}

  Value dict(int depth) {
    ValueDict items;
    const int n = below(4);
    for (int i = 0; i < n; ++i) items.emplace_back(key(i), value(depth));
    return Value::dict(std::move(items));
  }
  std::uint32_t tensors() const { return tensors_; }

 private:
  int below(int n) { return static_cast<int>(random_() % static_cast<std::uint64_t>(n)); }
  Value key(int i) {
    return below(5) == 0 ? Value::integer(i) : Value::string(fmt::format("k{}", i));
  }
  Value value(int depth) {
    const int what = depth == 0 ? below(3) : below(8);
    if (what == 0) return Value::tensor(tensors_++);
    if (what == 1) return Value::integer(below(100));
    if (what == 2) return Value::list({}, below(2) ? Value::Kind::kList : Value::Kind::kTuple);
    if (what < 5) return dict(depth - 1);
    ValueList items;
    const int n = below(4);
    for (int i = 0; i < n; ++i) items.push_back(value(depth - 1));
    return Value::list(std::move(items), what == 7 ? Value::Kind::kTuple : Value::Kind::kList);
  }

  std::mt19937_64 random_;
  std::uint32_t tensors_ = 0;
};

/// What torch-dcp gives back: the leaves, keys as text, no note of any container.
StateDict through_leaves(StateDict state) {
  state.containers.clear();
  for (StateEntry& entry : state.entries)
    for (PathItem& item : entry.path)
      if (item.kind == PathItem::Kind::kIntKey) item = {PathItem::Kind::kKey, 0, item.text()};
  return state;
}

std::map<std::string, Value> canonical(StateDict state) {
  const CanonicalState under_todays_names(state);
  std::map<std::string, Value> leaves;
  for (const StateEntry& entry : state.entries) leaves[entry.name] = entry.value;
  return leaves;
}

}  // namespace

TEST_CASE("random trees have one canonical form whichever rule flattened them and after a DCP") {
  int changed = 0;
  for (std::uint64_t seed = 1; seed <= 4000; ++seed) {
    INFO("seed " << seed);
    RandomTree random(seed);
    const Value tree = random.dict(4);
    ValueBudget budget(kManyValues);
    const StateDict today = flatten(tree, budget);
    const StateDict before = flatten_before_2_4(tree, budget);
    const auto expected = canonical(today);
    REQUIRE(canonical(before) == expected);
    REQUIRE(canonical(through_leaves(today)) == expected);
    REQUIRE(canonical(through_leaves(before)) == expected);
    // Every tensor leaf is still one, under some name; nothing is invented.
    std::size_t leaves = 0;
    for (const StateEntry& entry : today.entries) leaves += entry.value.is_tensor();
    std::size_t found = 0;
    for (const auto& [name, value] : expected) found += value.is_tensor();
    REQUIRE(found == leaves);
    changed += expected.size() != before.entries.size();
  }
  REQUIRE(changed > 100);
}

TEST_CASE("the stored entries come back") {
  StateDict state;
  state.entries.push_back({"f",
                           {{PathItem::Kind::kKey, 0, "f"}},
                           Value::dict({{Value::string("g"), Value::integer(1)}})});
  {
    const CanonicalState under_todays_names(state);
    REQUIRE(state.entries.at(0).name == "f.g");
  }
  REQUIRE(state.entries.at(0).name == "f");
}

TEST_CASE("a state that stands for no tree keeps its names") {
  StateDict state;
  state.entries.push_back({"f", {{PathItem::Kind::kKey, 0, "f"}}, Value::integer(1)});
  state.entries.push_back(
      {"f.g", {{PathItem::Kind::kKey, 0, "f"}, {PathItem::Kind::kKey, 0, "g"}}, Value::integer(2)});
  const CanonicalState under_todays_names(state);
  REQUIRE(state.entries.size() == 2);
  REQUIRE(state.entries[1].name == "f.g");
}

}  // namespace canonical_state_test
