// Paths of renamed parameters: what lay beside a weight in its dict or list still does.
#include "lib/state/edit/fqn_place.h"

#include <tessera/base/error.h>

#include <catch2/catch.hpp>

namespace fqn_place_test {

using namespace tessera;

namespace {

/// "conv.weight|3|w" with a key, an integer key ("i3") or an index ("[3]") an item.
std::string spelled(const Path& path) {
  std::string out;
  for (const PathItem& item : path) {
    if (!out.empty()) out += "|";
    if (item.kind == PathItem::Kind::kKey) out += item.text();
    if (item.kind == PathItem::Kind::kIntKey) out += "i" + item.text();
    if (item.kind == PathItem::Kind::kIndex) out += "[" + item.text() + "]";
  }
  return out;
}

/// `path` below "model", with the FQN that it spells renamed.
std::string renamed_below_model(Path path, const std::string& fresh) {
  const std::size_t length = dotted(path).size();
  path.insert(path.begin(), key_item("model"));
  return spelled(renamed_path(path, 6, length, fresh));
}

StateEntry entry(const Path& path) { return {dotted(path), path, Value::integer(1)}; }

}  // namespace

TEST_CASE("one key stays one") {
  CHECK(renamed_below_model({key_item("a.b")}, "c") == "model|c");
  CHECK(renamed_below_model({key_item("a")}, "c.d.e") == "model|c.d.e");
  const Path state = {key_item("optim"), key_item("state"), key_item("a.b"), key_item("exp_avg")};
  CHECK(spelled(renamed_path(state, 12, 3, "x.y.z")) == "optim|state|x.y.z|exp_avg");
}

TEST_CASE("of several items those stay that the names have in common") {
  const Path two = {key_item("gen"), key_item("conv.weight")};
  CHECK(renamed_below_model(two, "gen.conv.weight") == "model|gen|conv.weight");
  CHECK(renamed_below_model(two, "gen.c.weight") == "model|gen|c.weight");
  CHECK(renamed_below_model(two, "gen.w") == "model|gen|w");
  CHECK(renamed_below_model(two, "gen.a.conv.weight") == "model|gen|a.conv.weight");
  CHECK(renamed_below_model(two, "generator.conv.weight") == "model|generator|conv.weight");
  CHECK(renamed_below_model(two, "g.h.weight") == "model|g|h.weight");
  CHECK(renamed_below_model(two, "module.gen.conv.weight") == "model|module|gen|conv.weight");
  CHECK(renamed_below_model(two, "conv.weight") == "model|conv.weight");
  CHECK(renamed_below_model(two, "w") == "model|w");
  const Path tree = {key_item("a"), key_item("b"), key_item("c")};
  CHECK(renamed_below_model(tree, "a.b.c.d") == "model|a|b|c|d");
  CHECK(renamed_below_model(tree, "x.y") == "model|x|y");
}

TEST_CASE("indices and integer keys stay what they are") {
  const Path list = {key_item("blocks"), index_item(1), key_item("w")};
  CHECK(renamed_below_model(list, "blocks.1.w") == "model|blocks|[1]|w");
  CHECK(renamed_below_model(list, "h.1.w") == "model|h|[1]|w");
  CHECK(renamed_below_model(list, "blocks.2.w") == "model|blocks|[2]|w");
  CHECK(renamed_below_model(list, "blocks.one.w") == "model|blocks|one|w");
  CHECK(renamed_below_model({key_item("a"), int_key_item(7)}, "b.8") == "model|b|i8");
}

TEST_CASE("a number inside of a list becomes an index of it, and no leaf holds another") {
  StateDict state;
  state.entries = {entry({key_item("list"), index_item(0)}),
                   entry({key_item("list"), key_item("1"), key_item("x")}),
                   entry({key_item("dict"), key_item("0")}),
                   entry({key_item("dict"), key_item("1")})};
  settle_renamed(state, {false, true, false, true});
  CHECK(spelled(state.entries[1].path) == "list|[1]|x");
  CHECK(spelled(state.entries[3].path) == "dict|1");

  state.entries = {entry({key_item("a"), key_item("b")}),
                   entry({key_item("a"), key_item("b"), key_item("c")})};
  try {
    settle_renamed(state, {true, false});
    FAIL("not refused");
  } catch (const Error& error) {
    CHECK(error.status().code == Code::kInvalidArgument);
    CHECK(error.status().message.find("\"a.b.c\"") != std::string::npos);
  }
  state.entries[0].path = {key_item("a.b")};  // a key with a dot is no container
  settle_renamed(state, {true, false});
}

}  // namespace fqn_place_test
