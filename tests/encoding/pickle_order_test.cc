// A pickle is a program, and we read it after it ran: what a call was given must be what it was when
// the call happened. And the spellings that Python's unpicklers read in their own way.
#include <tessera/encoding/pickle_reader.h>
#include <tessera/encoding/pickle_writer.h>

#include <catch2/catch.hpp>
#include <cmath>

#include "tests/support/archive_gather.h"

namespace pickle_order_test {

using namespace tessera;
using namespace tessera::test;
using namespace std::string_literals;

namespace {

Value read(const std::string& pickle) {
  const PickleGraph graph = read_pickle(as_bytes(pickle));
  return decode_pickle(graph, graph.root(), nullptr);
}

Code code(const std::string& pickle, std::string* message = nullptr) {
  return code_of([&] { read(pickle); }, message);
}

void check_changed(const std::string& pickle) {
  INFO(pickle);
  std::string message;
  CHECK(code(pickle, &message) == Code::kCorrupt);
  CHECK_THAT(message, Catch::Contains("a change to an object that a call has already used"));
}

const std::string kOrderedDict = "ccollections\nOrderedDict\n";

}  // namespace

TEST_CASE("a container that a call was given does not grow afterwards") {
  check_changed(
      "(ctorch\nSize\n]q\x00K\x02"s
      "a\x85Rh\x00K\x03"s
      "al."s);
  check_changed("(" + kOrderedDict + "(}q\x00S'a'\nK\x01stRh\x00S'a'\nK\x02s0l."s);
  check_changed("(" + kOrderedDict + "]q\x00(S'a'\nK\x01la\x85Rh\x00(S'b'\nK\x01la0l."s);
  // The pairs are lists, too.
  check_changed("(" + kOrderedDict +
                "](S'a'\nK\x01lq\x00"s
                "a\x85Rh\x00K\x01"s
                "a0l."s);
  check_changed(
      "(c__builtin__\nset\n]q\x00K\x02"s
      "a\x85Rh\x00(K\x03"s
      "e0l."s);
  // Read only where a tensor is made of it: a size, and the flags of conjugation.
  check_changed(
      "(ctorch._utils\n_rebuild_tensor_v2\n(NK\x00]q\x00(K\x01tNNtRh\x00K\x02"s
      "al."s);
  check_changed("(ctorch._utils\n_rebuild_tensor_v2\n(NK\x00))NN}q\x00tRh\x00S'neg'\n\x88sl."s);
  check_changed(
      "(ctorch._tensor\n_rebuild_from_type_v2\n(NN(]q\x00tNtRh\x00K\x02"s
      "al."s);
  check_changed(
      "((S'storage'\n]q\x00tQh\x00K\x02"s
      "al."s);
}

TEST_CASE("a copied object does not change after it was copied") {
  check_changed("(" + kOrderedDict + ")Rq\x00"s + kOrderedDict + "h\x00\x85Rh\x00S'a'\nK\x01s0l."s);
  check_changed("(" + kOrderedDict + ")Rq\x00"s + kOrderedDict + "h\x00\x85Rh\x00}b0l."s);
}

TEST_CASE("a state does not grow after it was set") {
  check_changed("(" + kOrderedDict + ")R}q\x00"s + "bh\x00S'a'\nK\x01sl."s);
  check_changed(
      "(ctorch.distributed.checkpoint.filesystem\n_StorageInfo\n)\x81}q\x00S'offset'\nK\x01sb"s
      "h\x00S'offset'\nK\x02sl."s);
  std::string message;
  CHECK(code("(cmy\nThing\n)\x81}q\x00"s
             "bh\x00S'a'\nK\x01sl."s,
             &message) == Code::kUnsupported);
  CHECK_THAT(message, Catch::Contains("grows after it was passed to a class of unknown meaning"));
  CHECK(code("(cmy\nThing\n(]q\x00tRh\x00K\x01"s
             "al."s) == Code::kUnsupported);
}

TEST_CASE("what picklers write of objects that refer to each other is read") {
  // An object in its own state; a list of objects that hold the list; a dict that holds its owner.
  CHECK(code("cmy\nNode\n)\x81q\x00}S'self'\nh\x00sb."s) == Code::kOk);
  CHECK(code("(cmy\nTree\n)\x81q\x00}S'nodes'\n]q\x01(cmy\nNode\n)\x81}S'all'\nh\x01sbesbl."s) ==
        Code::kOk);
  CHECK(code("(cmy\nTree\n)\x81q\x00}S'made'\ncmy\nmake\n(h\x00tRsbl."s) == Code::kOk);
  // One dict as the state of two objects, and a list as the argument of two calls.
  CHECK(code("(cmy\nA\n)\x81}q\x00S'a'\nK\x01sbcmy\nA\n)\x81h\x00"s
             "bl."s) == Code::kOk);
  CHECK(code("(ctorch\nSize\n((K\x02tq\x00tRctorch\nSize\n(h\x00tRl."s) == Code::kOk);
  // A hook's OrderedDict that every tensor shares, a thousand items in two batches.
  CHECK(code("(" + kOrderedDict + ")Rq\x00S'a'\nK\x01s(S'b'\nK\x02uh\x00l."s) == Code::kOk);
}

TEST_CASE("numbers in text are read only where all unpicklers read them alike") {
  CHECK(read("I10\n.") == Value::integer(10));
  CHECK(read("I-10\n.") == Value::integer(-10));
  CHECK(read("I0\n.") == Value::integer(0));
  CHECK(read("I01\n.") == Value::boolean(true));
  CHECK(read("L10L\n.") == Value::integer(10));
  CHECK(read("L10\n.") == Value::integer(10));
  // Eight, an error, sixteen, true, false, errors.
  for (const char* text :
       {"I010\n.", "I-010\n.", "I0x10\n.", "I+1\n.", "I-0\n.", "I+10\n.", "I10L\n.", "I1_0\n.",
        "I 1\n.", "I001\n.", "L010L\n.", "L0x1L\n.", "L+1L\n.", "L00L\n."}) {
    INFO(text);
    CHECK(code(text) == Code::kCorrupt);
  }
}

TEST_CASE("modules of Python 2 are those that Python 3 takes for them") {
  CHECK(read("cUserDict\nOrderedDict\n)R.") == Value::ordered_dict({}, Value()));
}

TEST_CASE("frames end where opcodes do") {
  const auto framed = [](int length, const std::string& rest) {
    return "\x80\x04\x95"s + static_cast<char>(length) + std::string(7, '\0') + rest;
  };
  CHECK(code(framed(3, "K\x01."s)) == Code::kOk);
  CHECK(code(framed(2, "K\x01."s)) == Code::kOk);
  CHECK(code(framed(1, "K\x01."s)) == Code::kCorrupt);
  CHECK(code(framed(3,
                    "]K\x01"
                    "a."s)) == Code::kOk);
  CHECK(code(framed(2,
                    "]K\x01"
                    "a."s)) == Code::kCorrupt);
  CHECK(code(framed(12, framed(2, "K\x01."s).substr(2) + "N")) == Code::kCorrupt);
  std::size_t consumed = 0;
  const std::string two = framed(4, "K\x01.N"s);
  CHECK(code_of([&] { read_pickle(as_bytes(two), {}, &consumed); }) == Code::kCorrupt);
}

TEST_CASE("a backslash before a backslash escapes nothing") {
  CHECK(read("V\\u0041\n.") == Value::string("A"));
  CHECK(read("V\\\\u0041\n.") == Value::string("\\\\u0041"));
  CHECK(read("V\\\\\\u0041\n.") == Value::string("\\\\A"));
  CHECK(read("V\\x\\u0041\n.") == Value::string("\\xA"));
  CHECK(read("Va\\\n.") == Value::string("a\\"));
}

TEST_CASE("keys that are equal in Python are one key, with the last value") {
  const auto one = [](const std::string& first, const std::string& second, const Value& key) {
    INFO(first + " " + second);
    CHECK(read("}" + first + "S'a'\ns" + second + "S'b'\ns.") ==
          Value::dict({{key, Value::string("b")}}));
  };
  const std::string minus_zero = "G\x80"s + std::string(7, '\0');
  const std::string two_to_53 = "\x8a\x07\0\0\0\0\0\0\x20"s, two_to_53_real = "GC@\0\0\0\0\0\0"s;
  const std::string two_to_63 = "\x8a\x09\0\0\0\0\0\0\0\x80\0"s,
                    two_to_63_real = "GC\xe0\0\0\0\0\0\0"s;
  one("K\x01"s, "\x88", Value::integer(1));
  one("\x88", "K\x01"s, Value::boolean(true));
  one("F1.0\n", "K\x01"s, Value::real(1));
  one("K\x00"s, "\x89", Value::integer(0));
  one("F0.0\n", minus_zero, Value::real(0));
  CHECK(read("}ctorch\ndevice\n(S'cuda'\nK\x01tRNsctorch\ndevice\n(S'cuda:1'\ntRNs."s)
            .as_dict()
            .size() == 1);
  one(two_to_53, two_to_53_real, Value::integer(std::int64_t{1} << 53));
  one(two_to_63, two_to_63_real, Value::big_integer("9223372036854775808"));
  one("c__builtin__\ncomplex\n(F1.0\nF0.0\ntR", "\x88", Value::complex(1, 0));
  const Value tuple = Value::list({Value::integer(1)}, Value::Kind::kTuple);
  one("(K\x01t"s, "(\x88t"s, tuple);
  one("(K\x01t"s, "ctorch\nSize\n((K\x01ttR"s, tuple);
  one("((K\x01tt"s, "((F1.0\ntt"s, Value::list({tuple}, Value::Kind::kTuple));
}

TEST_CASE("keys that differ in Python stay two") {
  const auto count = [](const std::string& first, const std::string& second) {
    return read("}" + first + "S'a'\ns" + second + "S'b'\ns.").as_dict().size();
  };
  CHECK(count("K\x01"s, "S'1'\n") == 2);
  CHECK(count("K\x01"s, "F1.5\n") == 2);
  CHECK(count("S'a'\n",
              "C\x01"
              "a"s) == 2);
  CHECK(count("\x8a\x07\x01\0\0\0\0\0\x20"s, "GC@\0\0\0\0\0\0"s) == 2);  // 2**53 + 1
  CHECK(count("(K\x01t"s, "(K\x02t"s) == 2);
  CHECK(count("Fnan\n", "Fnan\n") == 2);
  CHECK(count("N", "\x89") == 2);
}

TEST_CASE("which NaN a key holds is not known, so that one of two uses is refused") {
  CHECK(code("}Fnan\nq\x00K\x01sh\x00K\x02s."s) == Code::kCorrupt);
  CHECK(code("}(Fnan\ntK\x01s(Fnan\ntK\x02s."s) == Code::kUnsupported);
}

TEST_CASE("a set holds equal items once") {
  CHECK(read("c__builtin__\nset\n((K\x01\x88"
             "F1.0\nttR."s) == Value::list({Value::integer(1)}, Value::Kind::kSet));
  CHECK(read("\x8f(K\x01\x88\x90."s) == Value::list({Value::integer(1)}, Value::Kind::kSet));
  CHECK(read("(K\x01\x88\x91."s) == Value::list({Value::integer(1)}, Value::Kind::kFrozenSet));
  const std::string both = "}(K\x01K\x02\x91S'a'\ns(K\x02\x88\x91S'b'\ns."s;
  CHECK(read(both).as_dict().size() == 1);
}

TEST_CASE("a dict that would lose a value in Python is not written") {
  const auto write = [](ValueDict entries) {
    std::string message;
    const Code result = code_of(
        [&] {
          PickleEmitter emitter;
          write_value(emitter, Value::dict(std::move(entries)), nullptr);
        },
        &message);
    if (result != Code::kOk) CHECK_THAT(message, Catch::Contains("one value would be lost"));
    return result;
  };
  CHECK(write({{Value::integer(1), Value()}, {Value::boolean(true), Value()}}) ==
        Code::kUnsupported);
  CHECK(write({{Value::string("a"), Value()}, {Value::string("a"), Value()}}) ==
        Code::kUnsupported);
  CHECK(write({{Value::integer(1), Value()}, {Value::string("1"), Value()}}) == Code::kOk);
  StateDict state;
  CHECK(code_of([] {
          ValueBudget budget(100);
          flatten(Value::dict({{Value::integer(1), Value()}, {Value::boolean(true), Value()}}),
                  budget);
        }) == Code::kUnsupported);
}

TEST_CASE("calls that do not mean what their arguments suggest are refused") {
  for (const std::string& pickle :
       {"ccollections\nOrderedDict\n(](S'a'\nK\x01ta\x85t\x81."s,  // __new__ takes no entries
        "ccollections\nCounter\n(](S'a'\nK\x01ta\x85R."s,          // counts the pairs
        "ccollections\nOrderedDict\n)R(S'_a'\nK\x01tb."s,          // no dict of attributes
        "c__builtin__\nset\n(S'ab'\ntR."s,                         // the letters
        "c__builtin__\nset\n(}K\x01K\x02stR."s,                    // the keys
        "c__builtin__\nset\n(](K\x01tt\x81."s, "c__builtin__\nset\n)R}b."s,
        "c__builtin__\ncomplex\n(F1.0\ntR."s, "c__builtin__\nbytearray\n(K\x05tR."s,
        "c__builtin__\nbytearray\n(V\\u00e9\nS'utf-8'\ntR."s, "c_codecs\nencode\n(V\\u00e9\ntR."s,
        "c_codecs\nencode\n(V\\u00e9\nS'latin2'\ntR."s, "ctorch\nSize\n(}tR."s}) {
    INFO(pickle);
    CHECK(code(pickle) == Code::kCorrupt);
  }
}

}  // namespace pickle_order_test
