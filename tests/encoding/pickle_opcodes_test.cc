// The pickle machine, opcode by opcode: what each protocol of CPython writes reads back, what no
// pickler writes is refused.
#include <fmt/format.h>
#include <tessera/encoding/pickle_reader.h>

#include <catch2/catch.hpp>

#include "tests/support/archive_gather.h"

namespace pickle_opcodes_test {

using namespace tessera;
using namespace tessera::test;
using namespace std::string_literals;

namespace {

std::string unhex(std::string_view hex) {
  std::string out;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
    out.push_back(static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16)));
  return out;
}

Value read(const std::string& pickle) {
  const PickleGraph graph = read_pickle(as_bytes(pickle));
  return decode_pickle(graph, graph.root(), nullptr);
}

Value ints(std::initializer_list<std::int64_t> values, Value::Kind kind = Value::Kind::kList) {
  ValueList list;
  for (const auto v : values) list.push_back(Value::integer(v));
  return Value::list(std::move(list), kind);
}

/// What the object of the table below is.
Value reference_object() {
  const auto tuple = Value::Kind::kTuple;
  ValueList big;
  for (const char* digits :
       {"9223372036854775808", "-9223372036854775809", "1208925819614629174706176",
        "-1606938044258990275541962092341162602522202993782792835301376"})
    big.push_back(Value::big_integer(digits));
  ValueDict dict;
  const auto set = [&](const char* key, Value value) {
    dict.emplace_back(Value::string(key), std::move(value));
  };
  set("i", ints({0, 1, 255, 256, 65535, 65536, -1, -2147483648, 2147483648, INT64_MAX, INT64_MIN}));
  set("big", Value::list(big));
  set("f", Value::list(
               {Value::real(0.0), Value::real(-1.5), Value::real(INFINITY), Value::real(1e300)}));
  set("s", Value::list({Value::string(""), Value::string("a"), Value::string("größe 🙂"),
                        Value::string("it's\\\n")}));
  set("b", Value::list({Value::boolean(true), Value::boolean(false), Value()}));
  set("t", Value::list({ints({}, tuple), ints({1}, tuple), ints({1, 2}, tuple),
                        ints({1, 2, 3}, tuple), ints({1, 2, 3, 4}, tuple)}));
  set("d", Value::dict({}));
  set("l", Value::list({}));
  return Value::dict(std::move(dict));
}

// pickle.dumps(object, protocol=0 .. 5) of CPython 3.11.
const char* const kProtocols[] = {
    "286470300a56690a70310a286c70320a49300a6149310a61493235350a61493235360a614936353533350a61"
    "4936353533360a61492d310a61492d323134373438333634380a614c323134373438333634384c0a614c3932"
    "32333337323033363835343737353830374c0a614c2d393232333337323033363835343737353830384c0a61"
    "73566269670a70330a286c70340a4c393232333337323033363835343737353830384c0a614c2d3932323333"
    "37323033363835343737353830394c0a614c313230383932353831393631343632393137343730363137364c"
    "0a614c2d31363036393338303434323538393930323735353431393632303932333431313632363032353232"
    "3230323939333738323739323833353330313337364c0a617356660a70350a286c70360a46302e300a61462d"
    "312e350a6146696e660a614631652b3330300a617356730a70370a286c70380a560a70390a6156610a703130"
    "0a61566772f6df65205c5530303031663634320a7031310a6156697427735c75303035635c75303030610a70"
    "31320a617356620a7031330a286c7031340a4930310a614930300a614e617356740a7031350a286c7031360a"
    "2874612849310a747031370a612849310a49320a747031380a612849310a49320a49330a747031390a612849"
    "310a49320a49330a49340a747032300a617356640a7032310a28647032320a73566c0a7032330a286c703234"
    "0a732e",
    "7d71002858010000006971015d7102284b004b014bff4d00014dffff4a000001004affffffff4a000000804c"
    "323134373438333634384c0a4c393232333337323033363835343737353830374c0a4c2d3932323333373230"
    "33363835343737353830384c0a65580300000062696771035d7104284c393232333337323033363835343737"
    "353830384c0a4c2d393232333337323033363835343737353830394c0a4c3132303839323538313936313436"
    "32393137343730363137364c0a4c2d3136303639333830343432353839393032373535343139363230393233"
    "34313136323630323532323230323939333738323739323833353330313337364c0a6558010000006671055d"
    "71062847000000000000000047bff8000000000000477ff0000000000000477e37e43c8800759c6558010000"
    "007371075d71082858000000007109580100000061710a580c0000006772c3b6c39f6520f09f9982710b5806"
    "000000697427735c0a710c65580100000062710d5d710e284930310a4930300a4e65580100000074710f5d71"
    "102829284b01747111284b014b02747112284b014b024b03747113284b014b024b034b047471146558010000"
    "006471157d711658010000006c71175d7118752e",
    "80027d71002858010000006971015d7102284b004b014bff4d00014dffff4a000001004affffffff4a000000"
    "808a0500000080008a08ffffffffffffff7f8a08000000000000008065580300000062696771035d7104288a"
    "090000000000000080008a09ffffffffffffff7fff8a0b00000000000000000000018a1a0000000000000000"
    "0000000000000000000000000000000000ff6558010000006671055d71062847000000000000000047bff800"
    "0000000000477ff0000000000000477e37e43c8800759c6558010000007371075d7108285800000000710958"
    "0100000061710a580c0000006772c3b6c39f6520f09f9982710b5806000000697427735c0a710c6558010000"
    "0062710d5d710e2888894e65580100000074710f5d711028294b018571114b014b028671124b014b024b0387"
    "7113284b014b024b034b047471146558010000006471157d711658010000006c71175d7118752e",
    "80037d71002858010000006971015d7102284b004b014bff4d00014dffff4a000001004affffffff4a000000"
    "808a0500000080008a08ffffffffffffff7f8a08000000000000008065580300000062696771035d7104288a"
    "090000000000000080008a09ffffffffffffff7fff8a0b00000000000000000000018a1a0000000000000000"
    "0000000000000000000000000000000000ff6558010000006671055d71062847000000000000000047bff800"
    "0000000000477ff0000000000000477e37e43c8800759c6558010000007371075d7108285800000000710958"
    "0100000061710a580c0000006772c3b6c39f6520f09f9982710b5806000000697427735c0a710c6558010000"
    "0062710d5d710e2888894e65580100000074710f5d711028294b018571114b014b028671124b014b024b0387"
    "7113284b014b024b034b047471146558010000006471157d711658010000006c71175d7118752e",
    "8004951c010000000000007d94288c0169945d94284b004b014bff4d00014dffff4a000001004affffffff4a"
    "000000808a0500000080008a08ffffffffffffff7f8a080000000000000080658c03626967945d94288a0900"
    "00000000000080008a09ffffffffffffff7fff8a0b00000000000000000000018a1a00000000000000000000"
    "000000000000000000000000000000ff658c0166945d942847000000000000000047bff8000000000000477f"
    "f0000000000000477e37e43c8800759c658c0173945d94288c00948c0161948c0c6772c3b6c39f6520f09f99"
    "82948c06697427735c0a94658c0162945d942888894e658c0174945d9428294b0185944b014b0286944b014b"
    "024b038794284b014b024b034b047494658c0164947d948c016c945d94752e",
    "8005951c010000000000007d94288c0169945d94284b004b014bff4d00014dffff4a000001004affffffff4a"
    "000000808a0500000080008a08ffffffffffffff7f8a080000000000000080658c03626967945d94288a0900"
    "00000000000080008a09ffffffffffffff7fff8a0b00000000000000000000018a1a00000000000000000000"
    "000000000000000000000000000000ff658c0166945d942847000000000000000047bff8000000000000477f"
    "f0000000000000477e37e43c8800759c658c0173945d94288c00948c0161948c0c6772c3b6c39f6520f09f99"
    "82948c06697427735c0a94658c0162945d942888894e658c0174945d9428294b0185944b014b0286944b014b"
    "024b038794284b014b024b034b047494658c0164947d948c016c945d94752e",
};

void check_refused(const std::string& name, const std::string& pickle, const std::string& says,
                   Code code = Code::kCorrupt) {
  INFO(name);
  std::string message;
  CHECK(code_of([&] { read(pickle); }, &message) == code);
  CHECK_THAT(message, Catch::Contains(says));
}

}  // namespace

TEST_CASE("all protocols of CPython read as the same object") {
  for (std::size_t protocol = 0; protocol < std::size(kProtocols); ++protocol) {
    INFO("protocol " << protocol);
    CHECK(read(unhex(kProtocols[protocol])) == reference_object());
  }
}

TEST_CASE("every truncation of a pickle is refused") {
  for (const char* hex : kProtocols) {
    const std::string pickle = unhex(hex);
    for (std::size_t length = 0; length < pickle.size(); ++length)
      CHECK(code_of([&] { read(pickle.substr(0, length)); }) == Code::kCorrupt);
  }
}

TEST_CASE("Python 2 strings are text where they are UTF-8, bytes elsewhere") {
  CHECK(read("S'a\\x41\\'\\n\\101'\n."s) == Value::string("aA'\nA"));
  CHECK(read("U\x03"s
             "abc.") == Value::string("abc"));
  CHECK(read("U\x02\xff\x00."s) == Value::bytes("\xff\x00"s));
  CHECK(read("T\x01\x00\x00\x00z."s) == Value::string("z"));
  CHECK(read("V\\u00e9\\U0001f642\n."s) == Value::string("é🙂"));
  CHECK(read("I42\n."s) == Value::integer(42));
  CHECK(read("I01\n."s) == Value::boolean(true));
  CHECK(read("L42L\n."s) == Value::integer(42));
  CHECK(read("F1.5\n."s) == Value::real(1.5));
}

TEST_CASE("bytes, bytearrays and sets of protocols 3 to 5") {
  CHECK(read("C\x02\x00\xff."s) == Value::bytes("\x00\xff"s));
  CHECK(read("B\x01\x00\x00\x00q."s) == Value::bytes("q"));
  CHECK(read("\x8e\x01\0\0\0\0\0\0\0q."s) == Value::bytes("q"));
  CHECK(read("\x96\x01\0\0\0\0\0\0\0q."s) == Value::bytes("q", Value::Kind::kByteArray));
  CHECK(read("\x8f(K\x01K\x02\x90."s) == ints({1, 2}, Value::Kind::kSet));
  CHECK(read("(K\x01\x91."s) == ints({1}, Value::Kind::kFrozenSet));
}

TEST_CASE("stack opcodes") {
  CHECK(read("K\x01K\x02"
             "0."s) == Value::integer(1));
  CHECK(read("K\x01(K\x02K\x03"
             "1."s) == Value::integer(1));
  CHECK(read("K\x01"
             "2\x86."s) == ints({1, 1}, Value::Kind::kTuple));
  CHECK(read("]K\x01"
             "a(K\x02K\x03"
             "e."s) == ints({1, 2, 3}));
  CHECK(read("(K\x01K\x02l."s) == ints({1, 2}));
  CHECK(read("](e."s) == ints({}));
  CHECK(read("}(u."s) == Value::dict({}));
}

TEST_CASE("containers that grow in turns keep their items") {
  // Two lists in a tuple, appended to alternately through the memo.
  std::string pickle =
      "]q\x00"
      "0]q\x01"
      "0"s;
  ValueList a;
  ValueList b;
  for (int i = 0; i < 200; ++i) {
    pickle += "h\x00"s + "K" + static_cast<char>(i) + "a0" + "h\x01" + "K" +
              static_cast<char>(255 - i) + "a0";
    a.push_back(Value::integer(i));
    b.push_back(Value::integer(255 - i));
  }
  pickle += "h\x00h\x01\x86."s;
  CHECK(read(pickle) == Value::list({Value::list(a), Value::list(b)}, Value::Kind::kTuple));
}

TEST_CASE("the graph records calls without making them") {
  const std::string pickle =
      "\x80\x02"
      "cmy.module\nThing\nq\x00)\x81}(X\x01\0\0\0aK\x01ub."s;
  const PickleGraph graph = read_pickle(as_bytes(pickle));
  const auto root = graph.root();
  CHECK(graph.kind(root) == PickleKind::kNewObj);
  CHECK(graph.is_call(root, "my.module", "Thing"));
  CHECK(graph.items(graph.arguments(root)).empty());
  REQUIRE(graph.state(root));
  CHECK(graph.integer(*graph.find(*graph.state(root), "a")) == 1);
  CHECK_FALSE(graph.find(*graph.state(root), "b"));
}

TEST_CASE("the persistent id of a module's class in a legacy container means the class") {
  const std::string id = "(X\x06\0\0\0modulecmy.module\nThing\nX\x01\0\0\0fX\x01\0\0\0xtQ"s;
  const std::string pickle = "\x80\x02" + id + ")\x81.";
  const PickleGraph graph = read_pickle(as_bytes(pickle));
  CHECK(graph.is_call(graph.root(), "my.module", "Thing"));
  const std::string other = "(X\x06\0\0\0moduleX\x01\0\0\0fX\x01\0\0\0fX\x01\0\0\0xtQ."s;
  const PickleGraph kept = read_pickle(as_bytes(other));
  CHECK(kept.kind(kept.root()) == PickleKind::kPersistentId);
  check_refused("called", "\x80\x02(X\x06\0\0\0moduleX\x01\0\0\0ftQ)\x81."s, "no global");
}

TEST_CASE("several pickles in a row") {
  const std::string pickles = "K\x01.K\x02."s;
  std::size_t consumed = 0;
  const PickleGraph first = read_pickle(as_bytes(pickles), {}, &consumed);
  CHECK(first.integer(first.root()) == 1);
  CHECK(consumed == 3);
  check_refused("trailing bytes", pickles, "3 bytes after STOP");
}

TEST_CASE("malformed streams are refused") {
  check_refused("empty", "", "without STOP");
  check_refused("no stop", "N", "without STOP");
  check_refused("unknown opcode", "\xff."s, "opcode 0xff is not allowed");
  check_refused("extension registry", "\x82\x01."s, "opcode 0x82");
  check_refused("extension registry 4", "\x84\x01\0\0\0."s, "opcode 0x84");
  check_refused("out-of-band buffer", "\x97."s, "opcode 0x97");
  check_refused("protocol 6", "\x80\x06N."s, "newer than 5");
  check_refused("PROTO inside", "N\x80\x02."s, "misplaced");
  check_refused("stop on empty stack", ".", "the stack is empty");
  check_refused("left-over values", "NN.", "values left");
  check_refused("left-over mark", "(N.", "values left");
  check_refused("tuple underflow", "N\x86."s, "the stack is empty");
  check_refused("pop through a mark", "N(\x85."s, "the stack is empty");
  check_refused("no mark", "Nt.", "no mark");
  check_refused("append to a tuple", ")Na.", "what is no list");
  check_refused("set in a list", "]NNs.", "what is no dict");
  check_refused("odd items", "}(Nu.", "a key without its value");
  check_refused("odd dict", "(Nd.", "a key without its value");
  check_refused("appends to nothing", "(Ne.", "nothing below the mark");
  check_refused("build on a list", "]}b.", "BUILD on something that is not an object");
  check_refused("build twice", "ca\nb\n)R}b}b.", "a second BUILD");
  check_refused("call of a string", "X\x01\0\0\0a)R."s, "what is no global");
  check_refused("arguments no tuple", "ca\nb\n]R.", "no tuple");
  check_refused("stack_global of ints", "K\x01K\x01\x93."s, "two strings");
  check_refused("persistent id from nothing", "Q.", "the stack is empty");
}

TEST_CASE("declared sizes and indices are bounded by what is there") {
  check_refused("binunicode", "X\xff\xff\xff\x7fxx."s, "2147483647 bytes where 3 are left");
  check_refused("binunicode8", "\x8d\0\0\0\0\0\0\0\x40."s, "4611686018427387904 bytes");
  check_refused("binbytes8", "\x8e\xff\xff\xff\xff\xff\xff\xff\xff."s, "18446744073709551615");
  check_refused("bytearray8", "\x96\xff\xff\xff\xff\xff\xff\xff\xff."s, "18446744073709551615");
  check_refused("negative binstring", "T\xff\xff\xff\xff."s, "negative length");
  check_refused("negative long4", "\x8b\xff\xff\xff\xff."s, "negative length");
  check_refused("long4", "\x8b\xff\xff\xff\x7f."s, "2147483647 bytes");
  check_refused("frame", "\x80\x04\x95\xff\xff\xff\xff\0\0\0\0N."s, "a frame past the end");
  check_refused("memo never written", "h\x05."s, "memo slot 5");
  check_refused("huge memo index", "Nr\xff\xff\xff\x7f."s, "memo index 2147483647 out of range");
  check_refused("text memo index", "Np99999999999\n."s, "memo index 99999999999 out of range");
  check_refused("text memo word", "Npx\n."s, "no number");
  check_refused("long integer", "\x8b\x00\x08\x00\x00"s + std::string(2048, '\x11') + ".",
                "an integer of 2048 bytes");
  check_refused("long decimal", "L" + std::string(5000, '9') + "L\n.", "5000 digits");
}

TEST_CASE("malformed text arguments are refused") {
  check_refused("int", "Iabc\n.", "is no integer");
  check_refused("float", "F1.x\n.", "is no float");
  check_refused("string without quotes", "Sabc\n.", "quoted string");
  check_refused("string with a cut escape", "S'\\x4'\n.", "quoted string");
  check_refused("unicode escape", "V\\u12\n.", "unicode escape");
  check_refused("no line end", "Iabc", "line end");
  check_refused("invalid UTF-8", "X\x01\0\0\0\xff."s, "not UTF-8");
}

TEST_CASE("deep nesting and long chains cost neither stack nor time") {
  std::string deep(1'000'000, ']');
  deep += std::string(999'999, 'a') + ".";
  const PickleGraph graph = read_pickle(as_bytes(deep));
  CHECK(graph.node_count() >= 1'000'000);
  check_refused("a million lists", deep, "nested deeper than 200 levels");
}

}  // namespace pickle_opcodes_test
