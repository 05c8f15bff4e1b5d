// The canonical text of values: what counts and what does not (docs/canonical-values.md). The
// interoperability test canonical_values holds it against Python's objects.
#include <fmt/format.h>
#include <tessera/encoding/canonical_value.h>
#include <tessera/encoding/pickle_reader.h>
#include <tessera/storage/checksum.h>

#include <bit>
#include <catch2/catch.hpp>
#include <functional>
#include <limits>
#include <random>
#include <set>

namespace canonical_value_test {

using namespace tessera;
using namespace std::string_literals;
using Kind = Value::Kind;

namespace {

ValueDigester digester() {
  return ValueDigester([](std::uint32_t index) { return fmt::format("uint8\t{}\tab", index); });
}
std::string text(const Value& value) { return digester().text(value); }

Value read(const std::string& pickle) {
  const PickleGraph graph = read_pickle(as_bytes(pickle));
  return decode_pickle(graph, graph.root(), {});
}

Value tuple(ValueList items) { return Value::list(std::move(items), Kind::kTuple); }
Value str(const char* text) { return Value::string(text); }

/// Whether Python would call them the same, types and all: written as the page says, not as the
/// code does.
bool same(const Value& a, const Value& b);

bool same_pairs(const ValueDict& a, const ValueDict& b, bool ordered) {
  if (a.size() != b.size()) return false;
  std::vector<bool> used(b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    bool found = false;
    for (std::size_t j = ordered ? i : 0; j < (ordered ? i + 1 : b.size()) && !found; ++j) {
      if (used[j] || !same(a[i].first, b[j].first) || !same(a[i].second, b[j].second)) continue;
      used[j] = found = true;
    }
    if (!found) return false;
  }
  return true;
}

bool same_items(const ValueList& a, const ValueList& b, bool ordered) {
  ValueDict left, right;
  for (const Value& item : a) left.emplace_back(item, Value());
  for (const Value& item : b) right.emplace_back(item, Value());
  return same_pairs(left, right, ordered);
}

bool same(const Value& a, const Value& b) {
  if (a.kind() != b.kind()) return false;
  const auto bits = [](double v) { return std::bit_cast<std::uint64_t>(v); };
  switch (a.kind()) {
    case Kind::kFloat:
      return bits(a.as_real()) == bits(b.as_real());
    case Kind::kComplex:
      return bits(a.as_complex().first) == bits(b.as_complex().first) &&
             bits(a.as_complex().second) == bits(b.as_complex().second);
    case Kind::kList:
    case Kind::kTuple:
      return same_items(a.as_list(), b.as_list(), true);
    case Kind::kSet:
    case Kind::kFrozenSet:
      return same_items(a.as_list(), b.as_list(), false);
    case Kind::kOpaque: {
      const OpaqueObject &x = a.as_opaque(), &y = b.as_opaque();
      return x.how == y.how && x.global() == y.global() && same(x.arguments, y.arguments) &&
             x.has_state == y.has_state && same(x.state, y.state) &&
             same_items(x.items, y.items, true) && same_pairs(x.dict_items, y.dict_items, true);
    }
    default:
      if (!a.is_dict()) return a == b;
      return same(a.attributes(), b.attributes()) &&
             same_pairs(a.as_dict(), b.as_dict(), a.kind() == Kind::kOrderedDict);
  }
}

/// From few leaves, so that equal values come up.
class SmallValues {
 public:
  explicit SmallValues(unsigned seed) : random_(seed) {}

  Value any(int depth) {
    if (depth == 0 || pick(3) == 0) return leaf();
    ValueList items;
    for (std::size_t n = pick(3); n > 0; --n) items.push_back(any(depth - 1));
    ValueDict pairs;
    std::set<std::string> keys;  // once each
    for (const Value& item : items)
      if (Value key = leaf(); keys.insert(text(key)).second) pairs.emplace_back(key, item);
    switch (pick(9)) {
      case 0:
        return Value::list(items);
      case 1:
        return tuple(items);
      case 2:
      case 3:
        return Value::list(leaves_once(), pick(2) ? Kind::kSet : Kind::kFrozenSet);
      case 4:
        return Value::dict(pairs);
      case 5:
        return Value::ordered_dict(pairs, pick(3) ? Value() : Value::dict(pairs));
      case 6:
        return Value::default_dict(pairs, pick(2) ? Value() : leaf());
      case 7:
        return Value::counter(pairs);
      default:
        return object(items, pairs);
    }
  }

 private:
  std::size_t pick(std::size_t n) { return random_() % n; }

  Value leaf() {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const Value leaves[] = {
        Value(),
        Value::boolean(true),
        Value::integer(1),
        Value::integer(0),
        Value::real(1),
        Value::real(0.0),
        Value::real(-0.0),
        Value::real(nan),
        Value::real(std::bit_cast<double>(std::bit_cast<std::uint64_t>(nan) | 1)),
        Value::complex(0.0, -0.0),
        str("1"),
        str(""),
        Value::string(std::string(70, 'x')),
        Value::bytes("1"),
        Value::bytes("1", Kind::kByteArray),
        Value::bytes("1", Kind::kBytesIo),
        Value::size({1}),
        Value::dtype(DType::kFloat16),
        Value::tensor(1)};
    return leaves[pick(std::size(leaves))];
  }
  ValueList leaves_once() {
    ValueList out;
    std::set<std::string> seen;
    for (std::size_t n = pick(3); n > 0; --n)
      if (Value item = leaf(); seen.insert(text(item)).second) out.push_back(item);
    return out;
  }
  Value object(const ValueList& items, const ValueDict& pairs) {
    OpaqueObject made;
    made.how = pick(2) ? OpaqueObject::How::kNewObj : OpaqueObject::How::kReduce;
    made.module = "m";
    made.name = pick(2) ? "A" : "B";
    made.arguments = tuple(items);
    made.has_state = pick(2);
    if (made.has_state) made.state = leaf();
    (pick(2) ? made.items : made.items) = pick(2) ? items : ValueList{};
    if (pick(2)) made.dict_items = pairs;
    return Value::opaque(std::move(made));
  }

  std::mt19937 random_;
};

}  // namespace

TEST_CASE("texts of plain values") {
  CHECK(text(Value()) == "none");
  CHECK(text(Value::boolean(true)) == "true");
  CHECK(text(Value::integer(-3)) == "int -3");
  CHECK(text(Value::big_integer("9223372036854775808")) == "int 9223372036854775808");
  CHECK(text(Value::real(1)) == "float 3ff0000000000000");
  CHECK(text(Value::real(-0.0)) == "float 8000000000000000");
  CHECK(text(Value::complex(0, 1)) == "complex 0000000000000000 3ff0000000000000");
  CHECK(text(str("a")) == "str a");
  CHECK(text(Value::bytes("a", Kind::kByteArray)) == "bytearray a");
  CHECK(text(Value::size({2, 3})) == "size 2,3");
  CHECK(text(Value::dtype(DType::kBFloat16)) == "dtype bfloat16");
  CHECK(text(Value::tensor(3)) == "tensor uint8\t3\tab");
  CHECK(text(Value::list({Value::integer(1), Value()})) == "list(5:int 14:none)");
  CHECK(text(Value::dict({{str("b"), Value::integer(1)}, {str("a"), Value::integer(2)}})) ==
        "dict(5:str a5:int 25:str b5:int 1)");
  CHECK(text(Value::ordered_dict({{str("b"), Value()}}, {})) == "ordereddict(4:none5:str b4:none)");
  CHECK(text(read("c__builtin__\nint\n.")) == "global(12:builtins.int)");
  CHECK(text(read("cm\nA\n(K\x01tR."s)) == "call(3:m.A14:tuple(5:int 1)1:-1:-7:items 0)");
}

TEST_CASE("a long text stands as its digest") {
  const std::string fifty(50, 'x');
  CHECK(text(Value::string(fifty)) == "str " + fifty);
  const Value pair = Value::list({Value::string(fifty), Value()});
  const std::string whole = "list(54:str " + fifty + "4:none)";
  REQUIRE(whole.size() > kMostInlineText);
  CHECK(text(pair) == "#" + hex(sha256(as_bytes(whole))));
  CHECK(digester().digest(pair) == hex(sha256(as_bytes(whole))));
  CHECK(digester().digest(Value()) == hex(sha256(as_bytes("none"))));
  CHECK(text(Value::string(std::string(61, 'y'))) ==
        "#" + hex(sha256(as_bytes("str " + std::string(61, 'y')))));
}

TEST_CASE("texts are equal exactly where values are") {
  std::vector<Value> values;
  SmallValues make(11);
  for (int i = 0; i < 1200; ++i) values.push_back(make.any(2));
  ValueDigester of = digester();
  std::vector<std::string> texts;
  for (const Value& value : values) texts.push_back(of.digest(value));
  int equal = 0, different = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      const bool expected = same(values[i], values[j]);
      (expected ? equal : different) += 1;
      if ((texts[i] == texts[j]) == expected) continue;
      FAIL("values " << i << " and " << j << ": " << text(values[i]) << " and " << text(values[j]));
    }
  }
  CHECK(equal > 5000);
  CHECK(different > 300000);
}

TEST_CASE("the order of dicts and sets does not count, that of an OrderedDict does") {
  const ValueDict ab = {{str("a"), Value()}, {str("b"), Value()}}, ba = {ab[1], ab[0]};
  CHECK(text(Value::dict(ab)) == text(Value::dict(ba)));
  CHECK(text(Value::counter(ab)) == text(Value::counter(ba)));
  CHECK(text(Value::default_dict(ab, {})) == text(Value::default_dict(ba, {})));
  CHECK(text(Value::ordered_dict(ab, {})) != text(Value::ordered_dict(ba, {})));
  CHECK(text(Value::list({str("a"), str("b")}, Kind::kSet)) ==
        text(Value::list({str("b"), str("a")}, Kind::kSet)));
}

TEST_CASE("sharing does not count, and costs nothing") {
  const Value inner = Value::list({str("a")});
  CHECK(text(Value::list({inner, inner})) == text(Value::list({inner, Value::list({str("a")})})));
  Value value = Value::list({str("a")});
  for (int i = 0; i < 150; ++i) value = Value::list({value, value});  // 2^150 paths
  ValueDigester of = digester();
  CHECK(of.text(value).starts_with("#"));
  CHECK(of.is_whole(value));
}

TEST_CASE("an object has one text in every protocol of pickle") {
  // cls.__new__ by NEWOBJ, by copyreg of protocols 0 and 1, and by its function.
  const std::string state = "}S'a'\nK\x01sb."s;
  const std::string by_opcode = text(read("cm\nA\n)\x81" + state));
  CHECK(text(read("ccopy_reg\n_reconstructor\n(cm\nA\nc__builtin__\nobject\nNtR" + state)) ==
        by_opcode);
  CHECK(text(read("ccopyreg\n__newobj__\n(cm\nA\ntR" + state)) == by_opcode);
  CHECK(text(read("cm\nA\n)}\x92" + state)) == by_opcode);
  CHECK(text(read("cm\nA\n)R" + state)) != by_opcode);  // a call may make another one
  CHECK(text(read("cnumpy._core.multiarray\nscalar\n(K\x01tR."s)) ==
        text(read("cnumpy.core.multiarray\nscalar\n(K\x01tR."s)));
  CHECK(text(read("cpathlib._local\nPosixPath\n(S'a'\ntR.")) ==
        text(read("cpathlib\nPosixPath\n(S'a'\ntR.")));
}

TEST_CASE("a numpy array is its type, shape and bytes, whichever call makes it") {
  const std::string dtype = "cnumpy\ndtype\n(S'u1'\nI0\nI1\ntR(K\x03S'|'\nNNNI-1\nI-1\nK\x00tb"s;
  const auto reconstructed = [&](const std::string& byte) {
    return text(
        read("cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tC\x01"
             "btR(K\x01(K\x02t"s +
             dtype + "\x89" + "C\x02\x01" + byte + "tb."));
  };
  const std::string from_buffer =
      "cnumpy._core.numeric\n_frombuffer\n(C\x02\x01\x02" + dtype + "(K\x02tS'C'\ntR."s;
  CHECK(reconstructed("\x02") == text(read(from_buffer)));
  CHECK(reconstructed("\x03") != text(read(from_buffer)));
}

TEST_CASE("a cycle is the distance to the object that is meant") {
  const auto node = [](const std::string& inside) {
    return text(read("cmy\nNode\n)\x81q\x00}S'parent'\n"s + inside + "sb."));
  };
  CHECK(node("h\x00"s) == node("h\x00"s));
  CHECK(node("h\x00"s) != node("N"));
  CHECK(node("h\x00\x85"s) != node("h\x00\x85\x85"s));
  // A child that knows its parent, and one that knows itself.
  const auto child = [&](const std::string& known) {
    return node("cmy\nNode\n)\x81q\x01}S'parent'\n" + known + "sb");
  };
  CHECK(child("h\x00"s) != child("h\x01"s));
  // What stands beside it, and was read before, does not count.
  const std::string pair = "cmy\nNode\n)\x81q\x00}S'b'\ncmy\nNode\n)\x81q\x01}S'a'\nh\x00sbsb"s;
  CHECK(text(read("(" + pair + "h\x01l."s).as_list()[1]) == text(read(pair + "0h\x01."s)));
}

TEST_CASE("what cannot be followed is said not to be whole") {
  OpaqueObject stub;
  stub.how = OpaqueObject::How::kExtension;
  stub.module = "m";
  stub.name = "A";
  ValueDigester of = digester();
  const Value inside = Value::list({Value::dict({{str("a"), Value::opaque(stub)}})});
  CHECK_FALSE(of.is_whole(inside));
  CHECK(of.is_whole(Value::list({})));
  CHECK(of.text(Value::opaque(stub)) == "cut(3:m.A)");
}

}  // namespace canonical_value_test
