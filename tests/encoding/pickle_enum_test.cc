// Members of enums as Python 3.11.0 to 3.11.3 pickle them: a call of getattr, kept and never made.
#include <tessera/base/error.h>
#include <tessera/encoding/pickle_globals.h>
#include <tessera/encoding/pickle_reader.h>
#include <tessera/encoding/pickle_writer.h>

#include <array>
#include <catch2/catch.hpp>

#include "tests/support/archive_gather.h"

namespace pickle_enum_test {

using namespace tessera;
using namespace tessera::test;
using namespace std::string_literals;

namespace {

constexpr char kGetattr[] = "c__builtin__\ngetattr\n";

/// The opcodes that push getattr(module.name, "attribute").
std::string member(const std::string& module, const std::string& name,
                   const std::string& attribute) {
  return kGetattr + ("(c" + module + "\n" + name + "\nS'" + attribute + "'\ntR");
}

const std::string kRed = member("my.module", "Color", "RED");

Value decoded(ByteView pickle) {
  const PickleGraph graph = read_pickle(pickle);
  return decode_pickle(graph, graph.root(), {});
}

Value decoded(const std::string& pickle) { return decoded(as_bytes(pickle)); }

void check_refused(const std::string& pickle) {
  INFO(pickle);
  std::string message;
  CHECK(code_of([&] { read_pickle(as_bytes(pickle)); }, &message) == Code::kCorrupt);
  CHECK_THAT(message, Catch::Contains("refused as unsafe: global builtins.getattr"));
  // Where denied globals are only listed, getattr is one of them.
  std::vector<GlobalUse> globals;
  read_pickle(as_bytes(pickle), {.collect_denied = true, .globals = &globals});
  const auto listed = std::find_if(globals.begin(), globals.end(), [](const GlobalUse& use) {
    return use.name == "builtins.getattr";
  });
  REQUIRE(listed != globals.end());
  CHECK(listed->verdict == GlobalUse::Verdict::kDenied);
}

}  // namespace

TEST_CASE("the member of an enum of an unknown class is an opaque value") {
  const Value value = decoded(kRed + ".");
  REQUIRE(value.kind() == Value::Kind::kOpaque);
  CHECK(value.as_opaque().how == OpaqueObject::How::kGlobal);
  CHECK(value.as_opaque().global() == "my.module.Color.RED");
  CHECK(value.as_opaque().arguments.is_none());
  // Protocol 4 spells the same thing as one global.
  CHECK(decoded("S'my.module'\nS'Color.RED'\n\x93."s) == value);
}

TEST_CASE("members of enums stand wherever values stand") {
  const Value in_list = decoded("(" + kRed + member("my.module", "Color", "_blue2") + "l.");
  REQUIRE(in_list.as_list().size() == 2);
  CHECK(in_list.as_list()[1].as_opaque().name == "Color._blue2");
  CHECK(decoded("(S'a'\n" + kRed + "d.").find("a")->as_opaque().name == "Color.RED");
  // As an argument of an opaque call, and as its state.
  const Value object = decoded("cmy.module\nConfig\n(" + kRed + "tR(S'c'\n" + kRed + "db.");
  CHECK(object.as_opaque().arguments.as_list()[0].as_opaque().name == "Color.RED");
  CHECK(object.as_opaque().state.find("c")->as_opaque().name == "Color.RED");
}

TEST_CASE("a member whose number is known is the call that other Pythons write") {
  const char* const stages[] = {"disabled", "optimizer_states", "gradients", "weights"};
  for (int stage = 0; stage < 4; ++stage) {
    const Value value =
        decoded(member("deepspeed.runtime.zero.config", "ZeroStageEnum", stages[stage]) + ".");
    CHECK(value == decoded("cdeepspeed.runtime.zero.config\nZeroStageEnum\n(I" +
                           std::to_string(stage) + "\ntR."));
  }
  const Value other =
      decoded(member("deepspeed.runtime.zero.config", "ZeroStageEnum", "later") + ".");
  CHECK(other.as_opaque().name == "ZeroStageEnum.later");
}

TEST_CASE("a member of an enum is written back as it was read") {
  const Value value = decoded("(" + kRed + kRed + "l.");
  PickleEmitter out;
  write_value(out, value, {});
  const Bytes written = out.finish();
  CHECK(decoded(ByteView(written)) == value);
  CHECK_THAT(std::string(as_text(written)), Catch::Contains("c__builtin__\ngetattr\n"s) &&
                                                Catch::Contains("cmy.module\nColor\n"s));
}

TEST_CASE("what no pickle of an enum holds is never written") {
  for (const char* name : {"Color.__class__", "Color.RED.value", "os.system", "Color.", ".RED"}) {
    OpaqueObject object;
    object.module = "torch";
    object.name = name;
    PickleEmitter out;
    CHECK(code_of([&] { write_value(out, Value::opaque(object), {}); }) == Code::kUnsupported);
  }
  OpaqueObject call;
  call.how = OpaqueObject::How::kReduce;
  call.module = "my.module";
  call.name = "Color.RED";
  call.arguments = Value::list({}, Value::Kind::kTuple);
  PickleEmitter out;
  CHECK(code_of([&] { write_value(out, Value::opaque(call), {}); }) == Code::kUnsupported);
}

TEST_CASE("getattr of anything but a class and a plain name is refused") {
  for (const char* attribute : {"__class__", "__globals__", "__init__", "__x", "", "a.b", "a b",
                                "1a", "RED\\n", "R\\x00", "\\xc3\\xa9"})
    check_refused(member("my.module", "Color", attribute) + ".");
  check_refused(member("builtins", "set", "add") + ".");
  check_refused(member("builtins", "getattr", "x") + ".");
  check_refused(member("my", "Outer.Inner", "RED") + ".");
  check_refused(member("my.module", "helpers", "RED") + ".");
  check_refused(member("my.module", "_", "RED") + ".");
  check_refused(member("my.module", "Color", "os") + ".");
  check_refused(member("my.module", "Color", "_sys") + ".");
  check_refused(kGetattr + "(cmy\nColor\nS'RED'\nNtR."s);  // with a default
  check_refused(kGetattr + "(cmy\nColor\nI1\ntR."s);       // no string
}

TEST_CASE("getattr of what is no bare class is refused") {
  check_refused(kGetattr + ("(" + kRed + "S'value'\ntR."));                 // chained
  check_refused(kGetattr + "(cmy\nColor\n(tRS'RED'\ntR."s);                 // of a call
  check_refused(kGetattr + "(cmy\nColor\n)\x81S'RED'\ntR."s);               // of an object
  check_refused(kGetattr + ("(" + std::string(kGetattr) + "S'RED'\ntR."));  // of itself
  check_refused(kGetattr + "((cmy\nColor\nlS'RED'\ntR."s);                  // of a list
}

TEST_CASE("an enum that is not kept is refused with what helps") {
  for (const std::string& pickle :
       {member("my.module", "Outer.Inner", "RED"),  // nested, protocol 4
        kGetattr + ("(" + member("my.module", "Outer", "Inner") + "S'RED'\ntR"),  // nested, 2
        member("my.module", "Flags", "A|B")}) {
    INFO(pickle);
    try {
      read_pickle(as_bytes(pickle + "."));
      FAIL_CHECK("read");
    } catch (const Error& error) {
      CHECK(error.code() == Code::kCorrupt);
      CHECK_THAT(error.status().hint, Catch::Contains("member of an enum") &&
                                          Catch::Contains("another Python") &&
                                          Catch::Contains(".value"));
    }
  }
}

TEST_CASE("a private class may be an enum, too") {
  CHECK(decoded(member("my.module", "_Color", "RED") + ".").as_opaque().name == "_Color.RED");
}

TEST_CASE("a denied module stays denied below getattr") {
  for (const char* module : {"os", "posix", "sys", "subprocess", "importlib", "ctypes"}) {
    std::string message;
    CHECK(code_of([&] { read_pickle(as_bytes(member(module, "system", "RED") + ".")); },
                  &message) == Code::kCorrupt);
    CHECK_THAT(message, Catch::Contains("refused as unsafe: global "s + module + ".system"));
  }
}

TEST_CASE("a denied module inside of another one stays denied below getattr") {
  for (const auto& [module, held, attribute] :
       {std::array{"random", "_os", "system"}, std::array{"torch", "os", "system"},
        std::array{"torch", "sys", "modules"}, std::array{"torch", "builtins", "eval"},
        std::array{"torch", "__builtins__", "eval"}, std::array{"torch", "importlib", "reload"}}) {
    std::string message;
    CHECK(code_of([&] { read_pickle(as_bytes(member(module, held, attribute) + ".")); },
                  &message) == Code::kCorrupt);
    CHECK_THAT(message, Catch::Contains("refused as unsafe: global "s + module + "." + held));
  }
}

TEST_CASE("the result of getattr is refused where it is called or built on") {
  check_refused(kRed + "(S'x'\ntR.");           // REDUCE
  check_refused(kRed + ")\x81.");               // NEWOBJ
  check_refused(kRed + ")}\x92.");              // NEWOBJ_EX
  check_refused("(" + kRed + "S'x'\no.");       // OBJ
  check_refused(kRed + "}b.");                  // BUILD
  check_refused(kRed + "S'x'\na.");             // APPEND
  check_refused(kRed + "(S'x'\ne.");            // APPENDS
  check_refused(kRed + "S'k'\nS'v'\ns.");       // SETITEM
  check_refused(kRed + "(S'k'\nS'v'\nu.");      // SETITEMS
  check_refused(kRed + "(S'x'\n\x90.");         // ADDITEMS
  check_refused(kRed + "p0\n0g0\n(S'x'\ntR.");  // by way of the memo
  check_refused(kRed + "(" + kRed + "tR.");     // of one with another
}

TEST_CASE("getattr itself is refused wherever it is not what REDUCE calls") {
  const std::string first = kRed + "0";  // a harmless call does not clear the name
  for (const std::string& before : {""s, first}) {
    check_refused(before + kGetattr + ".");
    check_refused(before + "(" + kGetattr + "l.");
    check_refused(before + "(S'k'\n" + kGetattr + "d.");
    check_refused(before + "]" + kGetattr + "a.");
    check_refused(before + "}S'k'\n" + kGetattr + "s.");
    check_refused(before + "cfunctools\npartial\n(" + kGetattr + "tR.");
    check_refused(before + "cmy\nThing\n)\x81" + kGetattr + "b.");
    check_refused(before + "cmy\nThing\n)\x81(S'k'\n" + kGetattr + "u.");
    check_refused(before + kGetattr + "Q.");
    check_refused(before + kGetattr + "(cmy\nColor\nS'RED'\nt\x81.");
  }
}

}  // namespace pickle_enum_test
