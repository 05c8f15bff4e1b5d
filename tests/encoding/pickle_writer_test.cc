// What write_value writes, read_pickle reads back as the same value; and the opcodes stay within
// weights_only's set.
#include <tessera/encoding/pickle_reader.h>
#include <tessera/encoding/pickle_writer.h>

#include <catch2/catch.hpp>
#include <random>
#include <set>

#include "tests/support/archive_gather.h"

namespace pickle_writer_test {

using namespace tessera;
using namespace tessera::test;
using namespace std::string_literals;

namespace {

Bytes write(const Value& value) {
  PickleEmitter emitter;
  write_value(emitter, value, [](PickleEmitter& e, std::uint32_t index) {
    e.integer(index);
    e.persistent_id();
  });
  return emitter.finish();
}

Value read(ByteView pickle) {
  const PickleGraph graph = read_pickle(pickle);
  return decode_pickle(
      graph, graph.root(),
      [](const PickleGraph& g, PickleGraph::Node node) -> std::optional<Value> {
        if (g.kind(node) != PickleKind::kPersistentId) return std::nullopt;
        return Value::tensor(static_cast<std::uint32_t>(g.integer(g.arguments(node))));
      });
}

class RandomValues {
 public:
  explicit RandomValues(unsigned seed) : random_(seed) {}

  Value any(int depth) {
    if (!made_.empty() && pick(8) == 0) return made_[pick(made_.size())];
    const Value value = depth > 0 && pick(2) ? container(depth - 1) : scalar();
    made_.push_back(value);
    return value;
  }

 private:
  std::size_t pick(std::size_t n) { return random_() % n; }

  Value scalar() {
    switch (pick(13)) {
      case 0:
        return Value();
      case 1:
        return Value::boolean(pick(2));
      case 2:
        return Value::integer(static_cast<std::int64_t>(random_()) >> pick(64));
      case 3:
        return Value::integer(static_cast<std::int64_t>(pick(70000)) - 300);
      case 4:
        return Value::real(
            std::ldexp(static_cast<double>(random_()), static_cast<int>(pick(200)) - 100));
      case 5:
        return Value::complex(1.5, -static_cast<double>(pick(9)));
      case 6:
        return Value::big_integer((pick(2) ? "-" : "") + "9"s + std::string(20 + pick(300), '7'));
      case 7:
        return Value::bytes(text());
      case 8:
        return Value::bytes(text(), Value::Kind::kByteArray);
      case 9:
        return Value::size({static_cast<std::int64_t>(pick(9)), 3});
      case 10:
        return Value::dtype(DType::kBFloat16);
      case 11:
        return Value::tensor(static_cast<std::uint32_t>(pick(1000)));
      default:
        return Value::string(pick(3) ? "k" + std::to_string(pick(300)) : "größe 🙂");
    }
  }

  Value container(int depth) {
    ValueList items;
    for (std::size_t n = pick(6); n > 0; --n) items.push_back(any(depth));
    switch (pick(8)) {
      case 6:
        return Value::counter(entries(depth));
      case 7:
        return Value::default_dict(entries(depth), pick(2) ? global("list") : Value());
      case 0:
        return Value::list(std::move(items));
      case 1:
        return Value::list(std::move(items), Value::Kind::kTuple);
      case 2:
        return Value::dict(entries(depth));
      case 3:
        return Value::ordered_dict(entries(depth), pick(2) ? Value::dict(entries(0)) : Value());
      case 4:
        return Value::list({Value::integer(static_cast<std::int64_t>(pick(99)))},
                           pick(2) ? Value::Kind::kSet : Value::Kind::kFrozenSet);
      default:
        return object(std::move(items), depth);
    }
  }

  static Value global(const char* name) {
    OpaqueObject out;
    out.module = "builtins";
    out.name = name;
    return Value::opaque(std::move(out));
  }

  ValueDict entries(int depth) {
    ValueDict out;
    for (std::size_t i = pick(6); i > 0; --i)
      out.emplace_back(pick(4) ? Value::string("key" + std::to_string(i))
                               : Value::integer(static_cast<std::int64_t>(i)),
                       any(depth));
    return out;
  }

  Value object(ValueList items, int depth) {
    OpaqueObject out;
    out.how = pick(2) ? OpaqueObject::How::kReduce : OpaqueObject::How::kNewObj;
    out.module = "some.module";
    out.name = "Class" + std::to_string(pick(3));
    out.arguments = Value::list(std::move(items), Value::Kind::kTuple);
    out.has_state = pick(2);
    if (out.has_state) out.state = any(depth);
    if (pick(2)) out.dict_items = entries(depth);
    if (pick(3) == 0) out.items.push_back(any(0));
    return Value::opaque(std::move(out));
  }

  std::string text() {
    std::string out;
    for (std::size_t n = pick(20); n > 0; --n) out.push_back(static_cast<char>(pick(256)));
    return out;
  }

  std::mt19937_64 random_;
  ValueList made_;
};

}  // namespace

TEST_CASE("random values read back as they were written") {
  for (unsigned seed = 0; seed < 600; ++seed) {
    INFO("seed " << seed);
    const Value value = RandomValues(seed).any(5);
    const Bytes pickle = write(value);
    CHECK(read(pickle) == value);
    CHECK(write(value) == pickle);
  }
}

TEST_CASE("long lists and dicts are written in batches") {
  ValueList list;
  ValueDict dict;
  for (int i = 0; i < 2500; ++i) {
    list.push_back(Value::integer(i));
    dict.emplace_back(Value::integer(i), Value::string(std::to_string(i)));
  }
  const Value value = Value::list({Value::list(list), Value::dict(dict)});
  CHECK(read(write(value)) == value);
}

TEST_CASE("shared containers are written once") {
  const Value shared = Value::list({Value::string("only once")});
  const Bytes pickle = write(Value::list({shared, shared}));
  const std::string text(as_text(pickle));
  CHECK(text.find("only once") == text.rfind("only once"));
  const Value back = read(pickle);
  CHECK(back.as_list()[0].node_id() == back.as_list()[1].node_id());
}

TEST_CASE("the pickle of a small dict, byte for byte") {
  const Bytes pickle = write(Value::dict({{Value::string("a"), Value::integer(300)}}));
  CHECK(as_text(pickle) == "\x80\x02}(X\x01\0\0\0aq\0M\x2c\x01u."s);
}

TEST_CASE("integers take the shortest opcode that weights_only knows") {
  const auto body = [](std::int64_t v) {
    const Bytes pickle = write(Value::integer(v));
    return std::string(as_text(pickle)).substr(2);
  };
  CHECK(body(0) == "K\0."s);
  CHECK(body(255) == "K\xff."s);
  CHECK(body(256) == "M\0\1."s);
  CHECK(body(65536) == "J\0\0\1\0."s);
  CHECK(body(-1) == "J\xff\xff\xff\xff."s);
  CHECK(body(2147483648) == "\x8a\x05\0\0\0\x80\0."s);
  CHECK(body(INT64_MIN) == "\x8a\x08\0\0\0\0\0\0\0\x80."s);
}

TEST_CASE("a nested class is written by getattr, as protocol 2 must") {
  OpaqueObject object;
  object.how = OpaqueObject::How::kReduce;
  object.module = "torch.distributed._shard.sharded_tensor.api";
  object.name = "ShardedTensor.ProcessGroupState";
  object.arguments = Value::list({Value::integer(0)}, Value::Kind::kTuple);
  const Value value = Value::opaque(object);
  CHECK(read(write(value)) == value);
}

TEST_CASE("cycles through objects are written again") {
  const auto node = [](Value state) {
    OpaqueObject out;
    out.how = OpaqueObject::How::kNewObj;
    out.module = "my";
    out.name = "Node";
    out.arguments = Value::list({}, Value::Kind::kTuple);
    out.has_state = true;
    out.state = std::move(state);
    return Value::opaque(std::move(out));
  };
  const auto named = [](const char* name, Value value) {
    return Value::dict({{Value::string(name), std::move(value)}});
  };
  // A node that knows itself; a child that knows its parent; lists and dicts that stand between.
  const Value self = node(named("me", Value::back_reference(2)));
  const Value tree = node(Value::dict(
      {{Value::string("all"), Value::list({node(named("parent", Value::back_reference(4))), self})},
       {Value::string("own"), Value::list({Value::back_reference(3), Value::integer(1)})},
       {Value::string("first"), self}}));
  for (const Value& value : {self, tree, Value::list({tree, tree, self})})
    CHECK(read(write(value)) == value);
  // Neither can Python: a tuple is made after what it holds.
  CHECK(code_of([&] {
          write(Value::list({node(named("pair", Value::back_reference(3)))}, Value::Kind::kTuple));
        }) == Code::kUnsupported);
  // What is meant is not here.
  CHECK(code_of([&] { write(node(Value::back_reference(2))); }) == Code::kUnsupported);
}

TEST_CASE("what protocol 2 cannot hold is refused") {
  OpaqueObject nested;
  nested.module = "some.module";
  nested.name = "Outer.Inner";
  nested.how = OpaqueObject::How::kReduce;
  CHECK(code_of([&] { write(Value::opaque(nested)); }) == Code::kUnsupported);
  OpaqueObject storage;
  storage.how = OpaqueObject::How::kPersistentId;
  CHECK(code_of([&] { write(Value::opaque(storage)); }) == Code::kUnsupported);
  CHECK(code_of([&] { write(Value::dtype(DType::kFloat6E2M3)); }) == Code::kUnsupported);
  CHECK(code_of([&] { write(Value::big_integer(std::string(5000, '9'))); }) == Code::kUnsupported);
}

}  // namespace pickle_writer_test
