// Untrusted JSON: what is read, and what is refused.
#include <tessera/base/error.h>
#include <tessera/encoding/json.h>

#include <catch2/catch.hpp>
#include <string>

namespace tessera::json_parse_test {
namespace {

Value parse(std::string_view text) { return parse_json(as_bytes(text)); }

std::string refusal(std::string_view text, const JsonLimits& limits = {}) {
  try {
    parse_json(as_bytes(text), limits);
  } catch (const Error& error) {
    CHECK(error.code() == Code::kCorrupt);
    return error.status().message;
  }
  return "accepted";
}

}  // namespace

TEST_CASE("JSON text becomes a tree that keeps the order of keys") {
  const Value tree =
      parse(R"( {"b": [1, -2, 2.5, 1e3], "a": {"x": null, "y": true}, "s": "gr\u00f6\u00dfe"} )");
  REQUIRE(tree.is_dict());
  CHECK(tree.as_dict()[0].first.as_string() == "b");
  CHECK(tree.as_dict()[1].first.as_string() == "a");
  const ValueList& list = tree.find("b")->as_list();
  CHECK(list[0] == Value::integer(1));
  CHECK(list[1] == Value::integer(-2));
  CHECK(list[2] == Value::real(2.5));
  CHECK(list[3] == Value::real(1000));
  CHECK(tree.find("a")->find("x")->is_none());
  CHECK(tree.find("a")->find("y")->as_bool());
  CHECK(tree.find("s")->as_string() == "größe");
}

TEST_CASE("JSON integers reach both ends of int64") {
  CHECK(parse("9223372036854775807") == Value::integer(INT64_MAX));
  CHECK(parse("-9223372036854775808") == Value::integer(INT64_MIN));
}

TEST_CASE("JSON numbers that no value can hold are refused") {
  CHECK_THAT(refusal("9223372036854775808"), Catch::Contains("int64"));
  CHECK_THAT(refusal("-9223372036854775809"), Catch::Contains("int64"));
  CHECK_THAT(refusal("123456789012345678901234567890"), Catch::Contains("int64"));
  CHECK_THAT(refusal("1e999"), Catch::Contains("too large"));
  CHECK_THAT(refusal("NaN"), Catch::Contains("JSON"));
  CHECK_THAT(refusal("01"), Catch::Contains("JSON"));
}

TEST_CASE("JSON duplicate keys are refused at every level") {
  CHECK_THAT(refusal(R"({"a": 1, "a": 1})"), Catch::Contains("duplicate key \"a\""));
  CHECK_THAT(refusal(R"({"x": {"k": 1, "l": 2, "k": 3}})"), Catch::Contains("duplicate key \"k\""));
  CHECK_THAT(refusal(R"({"a": 1, "\u0061": 2})"), Catch::Contains("duplicate"));
  CHECK(parse(R"([{"a": 1}, {"a": 2}])").as_list().size() == 2);
  std::string many = "{";
  for (int i = 0; i < 100; ++i) many += "\"k" + std::to_string(i) + "\":0,";
  CHECK(refusal(many + "\"last\":0}") == "accepted");
  CHECK_THAT(refusal(many + "\"k3\":0}"), Catch::Contains("duplicate key \"k3\""));
  CHECK_THAT(refusal(many + "\"k99\":0}"), Catch::Contains("duplicate key \"k99\""));
}

TEST_CASE("JSON deeper than the limit is refused, without recursion") {
  CHECK(refusal("[[[1]]]", {.max_depth = 3}) == "accepted");
  CHECK_THAT(refusal("[[[[1]]]]", {.max_depth = 3}), Catch::Contains("deeper than 3"));
  CHECK_THAT(refusal(std::string(5'000'000, '[')), Catch::Contains("deeper than 16"));
}

TEST_CASE("JSON trees are bounded by a count of values") {
  std::string text = "[";
  for (int i = 0; i < 1000; ++i) text += "0,";
  text += "0]";
  CHECK(refusal(text, {.max_values = 1002}) == "accepted");
  CHECK_THAT(refusal(text, {.max_values = 1001}), Catch::Contains("1001"));
}

TEST_CASE("JSON text that is damaged is refused") {
  CHECK_THAT(refusal("\xEF\xBB\xBF{}"), Catch::Contains("byte order mark"));
  CHECK_THAT(refusal(std::string_view("{\"a\\u0000b\": 1}")), Catch::Contains("NUL"));
  CHECK_THAT(refusal(std::string("{}\0", 3)), Catch::Contains("a NUL byte"));
  for (const std::string text :
       {"", " ", "{", "{}x", "{} {}", "[1,]", "{\"a\":1,}", "{a:1}", "'a'", "\"\xFF\"",
        "\"\xC0\x80\"", "\"\xED\xA0\x80\"", "\"\\ud800\"", "\"a\nb\"", "nul", "/**/1", "[1 2]"}) {
    CAPTURE(text);
    CHECK_THAT(refusal(text), Catch::StartsWith("JSON: "));
  }
}

TEST_CASE("JSON events come in order and stop where the handler throws") {
  struct Recorder : JsonHandler {
    std::string log;
    void begin_object() override { log += '{'; }
    void key(std::string&& name) override { log += name + ':'; }
    void end_object() override { log += '}'; }
    void begin_array() override { log += '['; }
    void end_array() override { log += ']'; }
    void scalar(Value value) override {
      if (value.is_string()) fail(Code::kInvalidArgument, "stop");
      log += dump_json(value) + ' ';
    }
  } recorder;
  CHECK_THROWS_AS(parse_json_events(as_bytes(R"({"a":[1,null],"b":"x","c":2})"), recorder), Error);
  CHECK(recorder.log == "{a:[1 null ]b:");
}

}  // namespace tessera::json_parse_test
