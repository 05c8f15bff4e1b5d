// Writing JSON: plain text that reads back equal, and the canonical form of RFC 8785.
#include <tessera/base/error.h>
#include <tessera/encoding/json.h>

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <string>

namespace tessera::json_write_test {
namespace {

Value text(const char* v) { return Value::string(v); }
std::string canonical(double v) { return canonical_json(Value::real(v)); }
double from_bits(std::uint64_t bits) { return std::bit_cast<double>(bits); }

}  // namespace

TEST_CASE("dump_json writes one line, or indented") {
  const Value tree = Value::dict({{text("b"), Value::list({Value::integer(1), Value()})},
                                  {text("a"), Value::dict({})},
                                  {text("c"), Value::list({})},
                                  {text("d"), Value::boolean(false)}});
  CHECK(dump_json(tree) == R"({"b":[1,null],"a":{},"c":[],"d":false})");
  CHECK(dump_json(tree, 2) ==
        "{\n  \"b\": [\n    1,\n    null\n  ],\n  \"a\": {},\n  \"c\": [],\n  \"d\": false\n}");
}

TEST_CASE("dump_json escapes what JSON and terminals need") {
  CHECK(dump_json(text("a\"b\\c\n\t\b\f\r\x01 é 🙂")) ==
        "\"a\\\"b\\\\c\\n\\t\\b\\f\\r\\u0001 é 🙂\"");
  CHECK(dump_json(Value::string("\xED\xA0\x80")) == "\"\\ud800\"");  // a lone surrogate
  CHECK(dump_json(Value::string("a\xFFz\xE2\x82")) == "\"a\xEF\xBF\xBDz\xEF\xBF\xBD\xEF\xBF\xBD\"");
  CHECK(dump_json(Value::string(std::string("a\0b", 3))) == "\"a\\u0000b\"");
}

TEST_CASE("dump_json refuses what JSON has no form for") {
  for (const Value& value :
       {Value::real(std::nan("")), Value::real(INFINITY), Value::bytes("x"),
        Value::list({}, Value::Kind::kTuple), Value::big_integer("99999999999999999999"),
        Value::dict({{Value::integer(1), Value()}})}) {
    CHECK_THROWS_AS(dump_json(value), Error);
    CHECK_THROWS_AS(canonical_json(value), Error);
  }
}

TEST_CASE("dump_json prints floats that read back equal and stay floats") {
  CHECK(dump_json(Value::real(1.0)) == "1.0");
  CHECK(dump_json(Value::real(0.1)) == "0.1");
  CHECK(dump_json(Value::real(-0.0)) == "-0.0");
  const unsigned seed = 20261;
  std::mt19937_64 random(seed);
  for (int i = 0; i < 20000; ++i) {
    const double v = from_bits(random());
    if (!std::isfinite(v)) continue;
    CAPTURE(seed, i, v);
    const Value back = parse_json(as_bytes(dump_json(Value::real(v))));
    REQUIRE(back.kind() == Value::Kind::kFloat);
    REQUIRE(std::bit_cast<std::uint64_t>(back.as_real()) == std::bit_cast<std::uint64_t>(v));
  }
}

// RFC 8785, appendix B.
TEST_CASE("canonical_json prints numbers as ECMAScript does") {
  CHECK(canonical(from_bits(0x0000000000000000)) == "0");
  CHECK(canonical(from_bits(0x8000000000000000)) == "0");
  CHECK(canonical(from_bits(0x0000000000000001)) == "5e-324");
  CHECK(canonical(from_bits(0x8000000000000001)) == "-5e-324");
  CHECK(canonical(from_bits(0x7fefffffffffffff)) == "1.7976931348623157e+308");
  CHECK(canonical(from_bits(0x4340000000000000)) == "9007199254740992");
  CHECK(canonical(from_bits(0xc340000000000000)) == "-9007199254740992");
  CHECK(canonical(from_bits(0x4430000000000000)) == "295147905179352830000");
  CHECK(canonical(from_bits(0x44b52d02c7e14af5)) == "9.999999999999997e+22");
  CHECK(canonical(from_bits(0x44b52d02c7e14af6)) == "1e+23");
  CHECK(canonical(from_bits(0x44b52d02c7e14af7)) == "1.0000000000000001e+23");
  CHECK(canonical(from_bits(0x444b1ae4d6e2ef4e)) == "999999999999999700000");
  CHECK(canonical(from_bits(0x444b1ae4d6e2ef4f)) == "999999999999999900000");
  CHECK(canonical(from_bits(0x444b1ae4d6e2ef50)) == "1e+21");
  CHECK(canonical(from_bits(0x3eb0c6f7a0b5ed8c)) == "9.999999999999997e-7");
  CHECK(canonical(from_bits(0x3eb0c6f7a0b5ed8d)) == "0.000001");
  CHECK(canonical(from_bits(0x41b3de4355555553)) == "333333333.3333332");
  CHECK(canonical(from_bits(0x41b3de4355555557)) == "333333333.33333343");
  CHECK(canonical(from_bits(0xbecbf647612f3696)) == "-0.0000033333333333333333");
  CHECK(canonical(1.0) == "1");
  CHECK(canonical(4.35) == "4.35");
  CHECK(canonical(1e-7) == "1e-7");
  CHECK(canonical_json(Value::integer(-12)) == "-12");
}

// RFC 8785, 3.2.3: keys sort by UTF-16 code units, so U+1F600 (a surrogate pair) comes before
// U+FB33.
TEST_CASE("canonical_json sorts keys by UTF-16 code units at every level") {
  const Value tree = Value::dict(
      {{text("€"), text("Euro Sign")},
       {text("\r"), text("Carriage Return")},
       {text("\xEF\xAC\xB3"), text("Hebrew Letter Dalet With Dagesh")},
       {text("1"), text("One")},
       {text("😀"), text("Emoji: Grinning Face")},
       {text("\xC2\x80"), text("Control")},
       {text("ö"), text("Latin Small Letter O With Diaeresis")},
       {text("z"), Value::list({Value::dict({{text("b"), Value()}, {text("a"), Value()}})})}});
  CHECK(canonical_json(tree) ==
        "{\"\\r\":\"Carriage "
        "Return\",\"1\":\"One\",\"z\":[{\"a\":null,\"b\":null}],\"\xC2\x80\":\"Control\",\"ö\":"
        "\"Latin Small "
        "Letter O With Diaeresis\",\"€\":\"Euro Sign\",\"😀\":\"Emoji: Grinning "
        "Face\",\"\xEF\xAC\xB3\":\"Hebrew Letter Dalet With "
        "Dagesh\"}");
}

}  // namespace tessera::json_write_test
