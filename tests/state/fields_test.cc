// Checked access to values from a file: what is refused, and what each refusal says of the place.
#include "lib/state/fields.h"

#include <catch2/catch.hpp>
#include <functional>

namespace fields_test {

using namespace tessera;

Value text(const char* s) { return Value::string(s); }
Value number(std::int64_t n) { return Value::integer(n); }

Value object_of(Value state) {
  OpaqueObject object;
  object.module = "torch.demo";
  object.name = "Thing";
  object.state = std::move(state);
  object.has_state = true;
  return Value::opaque(std::move(object));
}

/// {"units": [{"name": "a", "shape": (2, 3), "flag": True, "padding": -1}], "none": None}
Value sample() {
  const Value unit =
      Value::dict({{text("name"), text("a")},
                   {text("shape"), Value::list({number(2), number(3)}, Value::Kind::kTuple)},
                   {text("flag"), Value::boolean(true)},
                   {text("padding"), number(-1)}});
  return Value::dict({{text("units"), Value::list({unit})}, {text("none"), Value()}});
}

Status refusal(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.status();
  }
  return {};
}

TEST_CASE("fields of the expected form are read") {
  const Value root = sample();
  const Field unit = Field(root).at("units").items().at(0);
  CHECK(unit.path() == "units.0");
  CHECK(unit.at("name").text() == "a");
  CHECK(unit.at("shape").shape() == Shape{2, 3});
  CHECK(unit.at("shape").counts() == std::vector<std::int64_t>{2, 3});
  CHECK(unit.at("flag").flag());
  CHECK(unit.at("padding").integer() == -1);
  CHECK(unit.entries().size() == 4);
  CHECK(unit.entries()[0].value.path() == "units.0.name");
  const Value size = Value::size({4, 5});
  CHECK(Field(size).shape() == Shape{4, 5});
  CHECK_FALSE(Field(root).find("absent").has_value());
  CHECK(Field(root).find("none").has_value());
  CHECK_FALSE(Field(root).find_present("none").has_value());
}

TEST_CASE("a refusal says what was expected, where, and what was found") {
  const Value root = sample();
  const Field top(root, "shard metadata");
  const Field unit = top.at("units").items().at(0);
  struct Case {
    std::function<void()> read;
    const char* message;
  };
  const Value negative = Value::list({number(1), number(-2)});
  const Value huge = Value::list({number(std::int64_t{1} << 62), number(4)});
  const Value negative_size = Value::size({3, -1});
  const std::vector<Case> cases = {
      {[&] { unit.at("padding").count(); },
       "shard metadata: expected a count at \"units.0.padding\", found -1"},
      {[&] { unit.at("numel"); }, "shard metadata: \"numel\" is missing in \"units.0\""},
      {[&] { top.at("other"); }, "shard metadata: \"other\" is missing"},
      {[&] { unit.at("name").list(); },
       "shard metadata: expected a list at \"units.0.name\", found \"a\""},
      {[&] { unit.at("name").at("deeper"); },
       "shard metadata: expected a dict at \"units.0.name\", found \"a\""},
      {[&] { unit.at("shape").texts(); },
       "shard metadata: expected a string at \"units.0.shape.0\", found 2"},
      {[&] { top.at("none").flag(); },
       "shard metadata: expected True or False at \"none\", found None"},
      {[&] { top.tensor(); }, "shard metadata: expected a tensor, found a dict of 2"},
      {[&] { Field(negative, {}, "shape").shape(); }, "expected a count at \"shape.1\", found -2"},
      {[&] { Field(negative_size).shape(); }, "expected counts, found torch.Size([3, -1])"},
      {[&] { Field(huge, {}, "shape").shape(); },
       "\"shape\": shape [4611686018427387904,4] has more than 2^63 - 1 elements"},
      {[&] { unit.corrupt("2 names and 1 shapes"); },
       "shard metadata: \"units.0\": 2 names and 1 shapes"},
  };
  for (const Case& c : cases) {
    const Status status = refusal(c.read);
    CHECK(status.code == Code::kCorrupt);
    CHECK(status.message == c.message);
  }
}

TEST_CASE("what is not printable or long does not reach a message as it is") {
  const Value root = Value::dict({{text("a\nb"), text(std::string(100, 'x').c_str())}});
  const std::string message = refusal([&] { Field(root).entries().at(0).value.count(); }).message;
  CHECK(message == "expected a count at \"a\\nb\", found \"" + std::string(40, 'x') + "...\"");
}

TEST_CASE("attributes of objects are read from state and slots; a missing one is unsupported") {
  const Value plain = object_of(Value::dict({{text("dim"), number(1)}}));
  CHECK(Field(plain).at("dim").count() == 1);
  const Value slots = Value::dict({{text("_rank"), number(3)}});
  const Value slotted = object_of(Value::list({Value(), slots}, Value::Kind::kTuple));
  CHECK(integer_in(slotted, "_rank") == 3);
  const Status status = refusal([&] { Field(plain, {}, "w").at("mesh"); });
  CHECK(status.code == Code::kUnsupported);
  CHECK(status.message == "\"mesh\" is missing in \"w\", an object of torch.demo.Thing");
}

TEST_CASE("a member of an IntEnum counts as its number") {
  OpaqueObject stage;
  stage.how = OpaqueObject::How::kReduce;
  stage.module = "deepspeed.zero.config";
  stage.name = "ZeroStageEnum";
  stage.arguments = Value::list({number(2)}, Value::Kind::kTuple);
  const Value value = Value::opaque(std::move(stage));
  CHECK(Field(value).count() == 2);
  CHECK(refusal([&] { Field(value).integer(); }).message ==
        "expected an integer, found an object of deepspeed.zero.config.ZeroStageEnum");
}

TEST_CASE("what may be absent or of another kind reads as nothing") {
  const Value root = sample();
  CHECK(integer_in(root, "units") == std::nullopt);
  CHECK(flag_in(root, "none") == std::nullopt);
  CHECK(text_in(root, "absent") == "");
  CHECK(list_in(root, "units").size() == 1);
  CHECK(list_in(number(1), "units").empty());
}

TEST_CASE("a dotted root is cut into keys") {
  CHECK(root_path("").empty());
  CHECK(dotted(root_path("a.b")) == "a.b");
  CHECK(root_path("a.b").size() == 2);
}

}  // namespace fields_test
