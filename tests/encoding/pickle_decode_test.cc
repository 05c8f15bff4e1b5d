// Graph to Value: the classes that decode, what stays an object, sharing, cycles and depth.
#include <tessera/encoding/pickle_reader.h>

#include <catch2/catch.hpp>

#include "tests/support/archive_gather.h"

namespace pickle_decode_test {

using namespace tessera;
using namespace tessera::test;
using namespace std::string_literals;

namespace {

Value read(const std::string& pickle, const PickleHook& hook = nullptr) {
  const PickleGraph graph = read_pickle(as_bytes(pickle));
  return decode_pickle(graph, graph.root(), hook);
}

void check_refused(const std::string& pickle, const std::string& says, Code code = Code::kCorrupt) {
  std::string message;
  CHECK(code_of([&] { read(pickle); }, &message) == code);
  CHECK_THAT(message, Catch::Contains(says));
}

Value tuple(ValueList items) { return Value::list(std::move(items), Value::Kind::kTuple); }

}  // namespace

TEST_CASE("classes of plain data decode") {
  CHECK(read("ctorch\nSize\n((K\x02K\x03ttR."s) == Value::size({2, 3}));
  CHECK(read("ctorch\nSize\n()tR."s) == Value::size({}));
  CHECK(read("ctorch\nbfloat16\n.") == Value::dtype(DType::kBFloat16));
  CHECK(read("c__builtin__\ncomplex\n(F1.0\nF2.0\ntR.") == Value::complex(1, 2));
  CHECK(read("c__builtin__\nset\n((lp0\nK\x01"
             "atR."s) == Value::list({Value::integer(1)}, Value::Kind::kSet));
  CHECK(read("c__builtin__\nfrozenset\n(]tR.") == Value::list({}, Value::Kind::kFrozenSet));
  CHECK(read("c_codecs\nencode\n(V\\u00ff\x41\nS'latin1'\ntR."s) == Value::bytes("\xff"
                                                                                 "A"));
  CHECK(read("cbuiltins\nbytes\n)R.") == Value::bytes(""));
  CHECK(read("cbuiltins\nbytearray\n(C\x01\xfftR."s) ==
        Value::bytes("\xff", Value::Kind::kByteArray));
  CHECK(read("cbuiltins\nbytearray\n(V\\u00ff\nS'latin-1'\ntR.") ==
        Value::bytes("\xff", Value::Kind::kByteArray));
  CHECK(read("c_io\nBytesIO\n)\x81(C\x01zK\x00Ntb."s) == Value::bytes("z", Value::Kind::kBytesIo));
}

TEST_CASE("dicts of the collections module decode") {
  const ValueDict entries = {{Value::string("a"), Value::integer(1)}};
  CHECK(read("ccollections\nOrderedDict\n)R(S'a'\nK\x01u."s) ==
        Value::ordered_dict(entries, Value()));
  CHECK(read("ccollections\nOrderedDict\n(((S'a'\nK\x01lltR."s) ==
        Value::ordered_dict(entries, Value()));
  const Value with_attributes = read("ccollections\nOrderedDict\n)R}S'_metadata'\n}sb."s);
  CHECK(with_attributes ==
        Value::ordered_dict({}, Value::dict({{Value::string("_metadata"), Value::dict({})}})));
  CHECK(read("ccollections\nCounter\n(}S'a'\nK\x01stR."s) == Value::counter(entries));
  const Value made = read("ccollections\ndefaultdict\n(c__builtin__\nint\ntRS'a'\nK\x01s."s);
  CHECK(made == Value::default_dict(entries, read("c__builtin__\nint\n.")));
  CHECK(made.attributes().as_opaque().global() == "builtins.int");
  CHECK(read("ccollections\ndefaultdict\n)R."s) == Value::default_dict({}, Value()));
}

TEST_CASE("duplicate keys: the first place, the last value") {
  CHECK(read("}(S'a'\nK\x01S'b'\nK\x02S'a'\nK\x03u."s) ==
        Value::dict(
            {{Value::string("a"), Value::integer(3)}, {Value::string("b"), Value::integer(2)}}));
  CHECK(read("}(K\x01S'x'\nS'1'\nS'y'\nK\x01S'z'\nu."s) ==
        Value::dict(
            {{Value::integer(1), Value::string("z")}, {Value::string("1"), Value::string("y")}}));
  const PickleGraph graph = read_pickle(as_bytes("}(S'a'\nK\x01S'a'\nK\x03u."s));
  CHECK(graph.integer(*graph.find(graph.root(), "a")) == 3);
}

TEST_CASE("other calls become objects with all that the stream says") {
  const Value value = read(
      "cmy\nThing\n(K\x05t\x81}S'k'\nK\x01sb(K\x07"
      "e(K\x08K\x09u."s);
  REQUIRE(value.kind() == Value::Kind::kOpaque);
  const OpaqueObject& object = value.as_opaque();
  CHECK(object.global() == "my.Thing");
  CHECK(object.how == OpaqueObject::How::kNewObj);
  CHECK(object.arguments == tuple({Value::integer(5)}));
  REQUIRE(object.has_state);
  CHECK(object.state == Value::dict({{Value::string("k"), Value::integer(1)}}));
  CHECK(object.items == ValueList{Value::integer(7)});
  CHECK(object.dict_items == ValueDict{{Value::integer(8), Value::integer(9)}});
}

TEST_CASE("keyword arguments, globals, devices and nested classes") {
  const Value keywords = read("cmy\nThing\n)}S'k'\nK\x01s\x92."s);
  CHECK(keywords.as_opaque().how == OpaqueObject::How::kNewObjEx);
  CHECK(keywords.as_opaque().keyword_arguments.find("k")->as_int() == 1);
  CHECK(read("cmy\nThing\n.").as_opaque().how == OpaqueObject::How::kGlobal);
  CHECK(read("ctorch\ndevice\n(S'cpu'\ntR.").as_opaque().global() == "torch.device");
  const Value nested = read(
      "c__builtin__\ngetattr\n(ctorch.distributed._shard.sharded_tensor.api\nShardedTensor\n"
      "S'ProcessGroupState'\ntR(K\x00tR."s);
  CHECK(nested.as_opaque().name == "ShardedTensor.ProcessGroupState");
}

TEST_CASE("the hook answers first") {
  const auto hook = [](const PickleGraph& graph, PickleGraph::Node node) -> std::optional<Value> {
    if (graph.kind(node) == PickleKind::kPersistentId) return Value::tensor(7);
    return std::nullopt;
  };
  CHECK(read("(S'id'\ntQ\x85."s, hook) == tuple({Value::tensor(7)}));
}

TEST_CASE("shared nodes stay shared") {
  const Value value = read("]q\x00h\x00\x86."s);
  CHECK(value.as_list()[0].node_id() == value.as_list()[1].node_id());
}

TEST_CASE("long text that a pickle refers to again is held once") {
  for (const std::string opcode : {"X", "B"}) {  // text and bytes
    const std::string text = opcode + std::string("\x80\0\0\0", 4) + std::string(128, 'v');
    const Value twice = read("(" + text + "q\x00h\x00l."s);
    CHECK(twice.as_list()[0] == twice.as_list()[1]);
    CHECK(twice.as_list()[0].node_id() == twice.as_list()[1].node_id());
    const Value keys = read("(}" + text + "q\x00K\x01s}h\x00K\x01sl."s);
    CHECK(keys.as_list()[0].as_dict()[0].first.node_id() ==
          keys.as_list()[1].as_dict()[0].first.node_id());
  }
}

TEST_CASE("containers that hold themselves are unsupported: Python reads them, names have no end") {
  check_refused(
      "]q\x00h\x00"
      "a."s,
      "holds itself", Code::kUnsupported);
  check_refused("}q\x00K\x01h\x00s."s, "holds itself", Code::kUnsupported);
  check_refused("]q\x00(h\x00ta."s, "holds itself", Code::kUnsupported);
  check_refused("ccollections\nOrderedDict\n)Rq\x00K\x01h\x00s."s, "holds itself",
                Code::kUnsupported);
}

TEST_CASE("an object of an unknown class may refer to itself: by the levels in between") {
  const Value value = read("}S'config'\ncmy\nNode\n)\x81q\x00}S'parent'\nh\x00sbs."s);
  const OpaqueObject& node = value.find("config")->as_opaque();
  CHECK(node.global() == "my.Node");
  const Value* parent = node.state.find("parent");
  REQUIRE(parent);
  REQUIRE(parent->is_back_reference());
  CHECK(parent->distance() == 2);  // out of the dict, to the object
}

TEST_CASE("part of a cycle that stands in two places is decoded for each") {
  // a = Node(); b = Node(); a.b = b; b.a = a; (a, b)
  const Value value =
      read("cmy\nNode\n)\x81q\x00}S'b'\ncmy\nNode\n)\x81q\x01}S'a'\nh\x00sbsbh\x01\x86."s);
  const Value& b_in_a = *value.as_list()[0].as_opaque().state.find("b");
  const Value& b = value.as_list()[1];
  CHECK(b_in_a.as_opaque().state.find("a")->distance() == 4);
  // Alone it holds all of a, where it is met again.
  const Value& a_in_b = *b.as_opaque().state.find("a");
  CHECK(a_in_b.as_opaque().state.find("b")->distance() == 4);
}

TEST_CASE("cycles within cycles end in stubs, not in work without end") {
  // Forty objects, each of which knows all the others.
  constexpr int kObjects = 40;
  std::string pickle = "(";
  for (int i = 0; i < kObjects; ++i) pickle += "cmy\nNode\n)\x81q"s + static_cast<char>(i) + "0";
  for (int i = 0; i < kObjects; ++i) {
    pickle += "h"s + static_cast<char>(i) + "]("s;
    for (int j = 0; j < kObjects; ++j) pickle += "h"s + static_cast<char>(j);
    pickle += "eb";
  }
  const Value value = read(pickle + "l.");
  CHECK(value.as_list().size() == kObjects);
}

TEST_CASE("nesting up to the limit decodes, beyond it is corrupt") {
  const auto nested = [](int levels) {
    return std::string(static_cast<std::size_t>(levels), ']') +
           std::string(static_cast<std::size_t>(levels - 1), 'a') + ".";
  };
  CHECK_NOTHROW(read(nested(kMaxValueDepth)));
  check_refused(nested(kMaxValueDepth + 1), "nested deeper than 200 levels");
}

TEST_CASE("depth counts through shared nodes, too") {
  // A branch of 150 levels, first met near the top, then once more below 100 others.
  const std::string branch = std::string(150, ']') + std::string(149, 'a');
  const std::string again = std::string(100, ']') + "h\x00"s + std::string(100, 'a');
  check_refused(branch + "q\x00"s + again + "\x86.", "nested deeper than 200 levels");
}

TEST_CASE("malformed calls of known classes are corrupt") {
  check_refused("ctorch\nSize\n((S'x'\nttR.", "torch.Size");
  check_refused("c__builtin__\ncomplex\n(S'a'\nS'b'\ntR.", "complex");
  check_refused("c_codecs\nencode\n(V\\u0100\nS'latin1'\ntR.", "_codecs.encode");
  check_refused("c_codecs\nencode\n(S'a'\nS'rot13'\ntR.", "_codecs.encode");
  check_refused("cbuiltins\nbytearray\n(V\\u0100\nS'latin-1'\ntR.", "bytearray");
  check_refused("ccollections\nOrderedDict\n(((S'a'\nlltR.", "OrderedDict");
  check_refused("}]K\x01s."s, "as key");
}

}  // namespace pickle_decode_test
