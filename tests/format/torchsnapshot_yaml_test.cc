// The YAML that PyYAML's dump writes reads as it was; anything else is refused with its line.
#include <tessera/base/error.h>

#include <catch2/catch.hpp>

#include "lib/format/torchsnapshot/yaml.h"

namespace tessera::snapshot::torchsnapshot_yaml_test {
namespace {

Value text(const char* chars) { return Value::string(chars); }

TEST_CASE("mappings, sequences and scalars of dump() read back") {
  // yaml.dump({"v": "0.1", "n": 3, "m": {"a": [], "b": {}, "l": [1, "1", {"o": [0, 2], "p":
  // None}]},
  //            5: True, "s": "a: b", "e": "", "m2": [[1, 2], [3]]}, sort_keys=False)
  const Value read = parse_yaml(R"(v: '0.1'
n: 3
m:
  a: []
  b: {}
  l:
  - 1
  - '1'
  - o:
    - 0
    - 2
    p: null
5: true
s: 'a: b'
e: ''
m2:
- - 1
  - 2
- - 3
)");
  const Value item = Value::dict(
      {{text("o"), Value::list({Value::integer(0), Value::integer(2)})}, {text("p"), Value()}});
  const Value inner = Value::dict({{text("a"), Value::list({})},
                                   {text("b"), Value::dict({})},
                                   {text("l"), Value::list({Value::integer(1), text("1"), item})}});
  const Value pairs = Value::list(
      {Value::list({Value::integer(1), Value::integer(2)}), Value::list({Value::integer(3)})});
  CHECK(read == Value::dict({{text("v"), text("0.1")},
                             {text("n"), Value::integer(3)},
                             {text("m"), inner},
                             {Value::integer(5), Value::boolean(true)},
                             {text("s"), text("a: b")},
                             {text("e"), text("")},
                             {text("m2"), pairs}}));
}

TEST_CASE("folded and escaped scalars of dump() read back") {
  // yaml.dump of: 30 words "word" joined by blanks; "line\nnext: x"; 'h\xe9 \u2028 "d"' + 20 * '
  // long'; "it's: so"; "tab\there"; "\U0001f600"
  const Value read = parse_yaml(
      R"(plain: word word word word word word word word word word word word word word word
  word word word word word word word word word word word word word word word
lines: 'line

  next: x'
double: "h\xE9 \L \"d\" long long long long long long long long long long long long\
  \ long long long long long long long long"
single: 'it''s: so'
tab: "tab\there"
face: "\U0001F600"
)");
  std::string words = "word";
  for (int i = 1; i < 30; ++i) words += " word";
  std::string longs;
  for (int i = 0; i < 20; ++i) longs += " long";
  CHECK(read.find("plain")->as_string() == words);
  CHECK(read.find("lines")->as_string() == "line\nnext: x");
  CHECK(read.find("double")->as_string() == "h\xc3\xa9 \xe2\x80\xa8 \"d\"" + longs);
  CHECK(read.find("single")->as_string() == "it's: so");
  CHECK(read.find("tab")->as_string() == "tab\there");
  CHECK(read.find("face")->as_string() == "\xf0\x9f\x98\x80");
}

TEST_CASE("long keys stand behind a question mark") {
  const std::string key(150, 'k');
  const Value read = parse_yaml("a:\n  ? " + key + "\n  : type: int\n    keys:\n    - 1\n  z: 2\n");
  const Value* inner = read.find("a");
  REQUIRE(inner != nullptr);
  REQUIRE(inner->find(key) != nullptr);
  CHECK(inner->find(key)->find("type")->as_string() == "int");
  CHECK(inner->find("z")->as_int() == 2);
}

TEST_CASE("what dump() never writes is refused with its line") {
  const std::pair<std::string, std::string> refused[] = {
      {"", "empty"},
      {"a: 1\na: 2\n", "line 2: a key occurs twice"},
      {"a: &x 1\n", "line 1"},
      {"a: *x\n", "line 1"},
      {"a: !!python/object:os.system {}\n", "line 1"},
      {"# comment\na: 1\n", "line 1"},
      {"a: |\n  text\n", "line 1"},
      {"a: [1, 2]\n", "line 1"},
      {"a:\n\t- 1\n", "line 2"},
      {"a:\nb: 1\n", "line 2: a key without a value"},
      {"a: 1\n  b: 2\n", "line 2"},
      {"a: 'open\n", "not closed"},
      {"a: \"\\q\"\n", "escape"},
      {"a: \"\\ud800\"\n", "escape"},
      {"a:\n  b: 1\n c: 2\n", "line 3"},
      {"- 1\nb: 2\n", "outside"},
      {"null: 1\n", "line 1"},
      {"a: \xff\n", "UTF-8"},
      {"?", "an empty key"},
      {"? ", "line 1"},
  };
  for (const auto& [yaml, message] : refused) {
    CAPTURE(yaml);
    CHECK_THROWS_WITH(parse_yaml(yaml), Catch::Contains(message));
  }
  std::string deep;
  for (int i = 0; i < 100; ++i) deep += std::string(static_cast<std::size_t>(i), ' ') + "a:\n";
  CHECK_THROWS_WITH(parse_yaml(deep), Catch::Contains("nested too deeply"));
  std::string dashes = "a:\n";
  for (int i = 0; i < 5000; ++i) dashes += "- ";
  CHECK_THROWS_WITH(parse_yaml(dashes + "1\n"), Catch::Contains("nested too deeply"));
}

}  // namespace
}  // namespace tessera::snapshot::torchsnapshot_yaml_test
