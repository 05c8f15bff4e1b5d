// Tagged JSON: every value comes back as it was.
#include <tessera/base/error.h>
#include <tessera/encoding/json.h>
#include <tessera/encoding/tagged_json.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <random>
#include <string>

namespace tessera::json_tagged_test {
namespace {

using Kind = Value::Kind;

std::string encode(const Value& value) {
  ValueBudget budget(1000000);
  return dump_json(to_tagged_json(
      value, [](std::uint32_t i) { return "t" + std::to_string(i); }, budget));
}
Value decode(const std::string& json) {
  return from_tagged_json(parse_json(as_bytes(json), {.max_depth = kTaggedJsonDepth}),
                          [](const std::string& name) {
                            if (name[0] != 't') fail(Code::kCorrupt, "no such tensor");
                            return static_cast<std::uint32_t>(std::stoul(name.substr(1)));
                          });
}

/// A random tree over every kind that has a form.
Value random_value(std::mt19937_64& random, int depth) {
  const auto items = [&] {
    ValueList out;
    for (std::size_t i = random() % 4; i > 0; --i) out.push_back(random_value(random, depth - 1));
    return out;
  };
  const auto entries = [&] {
    static const std::string kKeys[] = {
        "a", "b.c", "__tuple__", "", "größe", std::string("n\0l", 3), "\xFF"};
    ValueDict out;
    for (const std::string& key : kKeys)
      if (random() % 4 == 0) out.emplace_back(Value::string(key), random_value(random, depth - 1));
    if (random() % 4 == 0)
      out.emplace_back(Value::integer(static_cast<std::int64_t>(random() % 9)),
                       random_value(random, depth - 1));
    return out;
  };
  switch (random() % (depth > 0 ? 20 : 13)) {
    case 0:
      return Value();
    case 1:
      return Value::boolean(random() % 2 == 0);
    case 2:
      return Value::integer(static_cast<std::int64_t>(random()));
    case 3:
      return Value::integer(static_cast<std::int64_t>(random() % 100) - 50);
    case 4:
      return Value::big_integer("-98765432109876543210");
    case 5:
      return Value::real(static_cast<double>(random()) / 7);
    case 6:
      return Value::real(random() % 2 == 0 ? std::nan("") : -INFINITY);
    case 7:
      return Value::complex(0.5, INFINITY);
    case 8:
      return Value::string(random() % 2 == 0 ? "text" : "\xED\xA0\x80");
    case 9:
      return Value::bytes(std::string("\0\xFE", 2),
                          random() % 2 == 0 ? Kind::kBytes : Kind::kByteArray);
    case 10:
      return Value::size({1, static_cast<std::int64_t>(random() % 99)});
    case 11:
      return Value::dtype(DType::kFloat8E4M3Fn);
    case 12:
      return Value::tensor(static_cast<std::uint32_t>(random() % 9));
    case 13:
      return Value::list(items());
    case 14:
      return Value::list(items(), Kind::kTuple);
    case 15:
      return Value::list(items(), Kind::kSet);
    case 16:
      return Value::list(items(), Kind::kFrozenSet);
    case 17:
      return Value::dict(entries());
    case 18:
      return Value::ordered_dict(entries(), random_value(random, depth - 1));
    default:
      return Value::bytes("io", Kind::kBytesIo);
  }
}

}  // namespace

TEST_CASE("tagged JSON is readable") {
  CHECK(encode(Value::list({Value::real(0.9), Value::real(0.95)}, Kind::kTuple)) ==
        R"({"__tuple__":[0.9,0.95]})");
  CHECK(encode(Value::dict({{Value::string("lr"), Value::real(1)}})) == R"({"lr":1.0})");
  CHECK(encode(Value::dict({{Value::integer(3), Value::string("x")}})) ==
        R"({"__dict__":[[3,"x"]]})");
  CHECK(encode(Value::tensor(2)) == R"({"__tensor__":"t2"})");
}

TEST_CASE("random values survive tagged JSON") {
  const unsigned seed = 4711;
  std::mt19937_64 random(seed);
  for (int i = 0; i < 3000; ++i) {
    const Value value = random_value(random, 5);
    const std::string json = encode(value);
    CAPTURE(seed, i, json);
    REQUIRE(decode(json) == value);
  }
}

TEST_CASE("tagged JSON reaches the depth that values may have") {
  Value deep = Value::integer(1);
  for (int i = 0; i < kMaxValueDepth; ++i) deep = Value::dict({{Value::integer(0), deep}});
  CHECK(decode(encode(deep)) == deep);
  const Value deeper = Value::dict({{Value::integer(0), deep}});
  CHECK_THROWS_AS(decode(encode(deeper)), Error);
}

TEST_CASE("tagged JSON refuses objects, and sharing that explodes") {
  OpaqueObject object;
  object.module = "m";
  object.name = "C";
  CHECK_THROWS_WITH(encode(Value::list({Value::opaque(object)})), Catch::Contains("m.C"));
  Value doubled = Value::integer(1);
  for (int i = 0; i < 60; ++i) doubled = Value::list({doubled, doubled});
  CHECK_THROWS_AS(encode(doubled), Error);
}

TEST_CASE("malformed tags are corrupt") {
  for (const std::string json :
       {R"({"__tuple__":1})", R"({"__nope__":1})", R"({"__int__":"x"})", R"({"__int__":""})",
        R"({"__int__":"1-"})", R"({"__int__":5})", R"({"__float__":"1"})",
        R"({"__bytes_hex__":"0"})", R"({"__bytes_hex__":"0g"})", R"({"__dtype__":"float7"})",
        R"({"__dict__":[[1]]})", R"({"__size__":["a"]})", R"({"__complex__":[1]})",
        R"({"__tuple__":[],"x":1})", R"({"x":1,"__tuple__":[]})", R"({"__ordered_dict__":[]})",
        R"({"__tensor__":"x"})"}) {
    CAPTURE(json);
    try {
      decode(json);
      FAIL("accepted");
    } catch (const Error& error) {
      CHECK(error.code() == Code::kCorrupt);
    }
  }
}

}  // namespace tessera::json_tagged_test
