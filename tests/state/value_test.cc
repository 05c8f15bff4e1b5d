#include <tessera/base/error.h>
#include <tessera/state/value.h>

#include <catch2/catch.hpp>
#include <functional>
#include <limits>
#include <utility>

namespace value_test {

using namespace tessera;
using Kind = Value::Kind;

namespace {

Value text(const char* s) { return Value::string(s); }

/// One of every kind.
std::vector<Value> samples() {
  OpaqueObject object;
  object.how = OpaqueObject::How::kReduce;
  object.module = "torch.optim.lr_scheduler";
  object.name = "StepLR";
  object.arguments = Value::list({Value::integer(1)}, Kind::kTuple);
  return {Value(),
          Value::boolean(true),
          Value::integer(-7),
          Value::big_integer("123456789012345678901234567890"),
          Value::real(0.5),
          Value::complex(1, -2),
          text("größe"),
          Value::bytes("ab"),
          Value::bytes("ab", Kind::kByteArray),
          Value::bytes("ab", Kind::kBytesIo),
          Value::list({Value::integer(1)}),
          Value::list({Value::integer(1)}, Kind::kTuple),
          Value::list({Value::integer(1)}, Kind::kSet),
          Value::list({Value::integer(1)}, Kind::kFrozenSet),
          Value::size({1, 2}),
          Value::dict({{text("a"), Value::integer(1)}}),
          Value::ordered_dict({{text("a"), Value::integer(1)}}, Value()),
          Value::default_dict({{text("a"), Value::integer(1)}}, Value()),
          Value::counter({{text("a"), Value::integer(1)}}),
          Value::dtype(DType::kBFloat16),
          Value::tensor(3),
          Value::opaque(object),
          Value::back_reference(1)};
}

/// Two lists, each twice the one below: 2^levels paths through `levels` nodes.
Value doubled(int levels, Value value) {
  for (int i = 0; i < levels; ++i) value = Value::list({value, value});
  return value;
}

}  // namespace

TEST_CASE("values of every kind differ from each other and equal themselves") {
  const auto values = samples();
  const auto again = samples();
  for (std::size_t i = 0; i < values.size(); ++i) {
    CHECK(static_cast<std::size_t>(values[i].kind()) == i);
    for (std::size_t j = 0; j < again.size(); ++j) {
      INFO(i << " and " << j);
      CHECK((values[i] == again[j]) == (i == j));
    }
  }
}

TEST_CASE("numbers keep their type") {
  CHECK_FALSE(Value::integer(1) == Value::real(1.0));
  CHECK_FALSE(Value::integer(1) == Value::boolean(true));
  CHECK(Value::integer(3).as_real() == 3.0);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(Value::real(nan) == Value::real(nan));
  CHECK(Value::complex(nan, 1) == Value::complex(nan, 1));
}

TEST_CASE("the order of a dict counts, and integer keys differ from text") {
  const Value one = Value::integer(1);
  CHECK_FALSE(Value::dict({{text("a"), one}, {text("b"), one}}) ==
              Value::dict({{text("b"), one}, {text("a"), one}}));
  CHECK_FALSE(Value::dict({{one, one}}) == Value::dict({{text("1"), one}}));
  CHECK_FALSE(Value::ordered_dict({}, one) == Value::ordered_dict({}, Value()));
}

TEST_CASE("a dict finds its string keys") {
  const Value dict = Value::dict({{Value::integer(1), text("int")}, {text("1"), text("text")}});
  REQUIRE(dict.find("1") != nullptr);
  CHECK(dict.find("1")->as_string() == "text");
  CHECK(dict.find("2") == nullptr);
  CHECK(text("x").find("x") == nullptr);
}

TEST_CASE("accessors of another kind are a bug of the caller") {
  for (const Value& value : samples()) {
    if (value.kind() != Kind::kInt) CHECK_THROWS_AS(value.as_int(), Error);
    if (!value.is_dict()) CHECK_THROWS_AS(value.as_dict(), Error);
    if (!value.is_number()) CHECK_THROWS_AS(value.as_real(), Error);
    if (value.kind() != Kind::kOpaque) CHECK_THROWS_AS(value.as_opaque(), Error);
    if (!value.is_tensor()) CHECK_THROWS_AS(value.tensor_index(), Error);
  }
  CHECK_THROWS_AS(Value::bytes("", Kind::kString), Error);
  CHECK_THROWS_AS(Value::list({}, Kind::kDict), Error);
}

TEST_CASE("copies share their node") {
  const Value list = Value::list({Value::integer(1)});
  const Value copy = list;
  CHECK(copy.node_id() == list.node_id());
  CHECK(list.node_id() != nullptr);
  CHECK(Value::integer(1).node_id() == nullptr);
  CHECK(Value::tensor(1).node_id() == nullptr);
  CHECK(Value::list({Value::integer(1)}).node_id() != list.node_id());
}

TEST_CASE("a value knows whether tensors stand inside, wherever they do") {
  const Value tensor = Value::tensor(3), plain = Value::list({text("a"), Value::integer(1)});
  CHECK(tensor.holds_tensors());
  for (const Value& value : samples()) {
    INFO(static_cast<int>(value.kind()));
    CHECK(value.holds_tensors() == value.is_tensor());
  }
  const auto object_with = [&](int place, const Value& value) {
    OpaqueObject out;
    out.arguments = place == 0 ? value : plain;
    out.keyword_arguments = place == 1 ? value : Value();
    out.state = place == 2 ? value : plain;
    out.items = {plain, place == 3 ? value : plain};
    out.dict_items = {{place == 4 ? value : text("k"), place == 5 ? value : plain}};
    return Value::opaque(std::move(out));
  };
  const std::function<Value(const Value&)> holders[] = {
      [&](const Value& v) {
        return Value::list({plain, v});
      },
      [&](const Value& v) { return Value::list({v}, Kind::kTuple); },
      [&](const Value& v) { return Value::list({v}, Kind::kSet); },
      [&](const Value& v) { return Value::list({v}, Kind::kFrozenSet); },
      [&](const Value& v) {
        return Value::dict({{text("a"), plain}, {text("b"), v}});
      },
      [&](const Value& v) {
        return Value::dict({{v, plain}});
      },
      [&](const Value& v) {
        return Value::ordered_dict({{text("a"), v}}, Value());
      },
      [&](const Value& v) {
        return Value::ordered_dict({{text("a"), plain}}, v);
      },
      [&](const Value& v) {
        return Value::default_dict({{text("a"), v}}, Value());
      },
      [&](const Value& v) { return Value::default_dict({}, v); },
      [&](const Value& v) {
        return Value::counter({{v, Value::integer(1)}});
      },
      [&](const Value& v) { return object_with(0, v); },
      [&](const Value& v) { return object_with(1, v); },
      [&](const Value& v) { return object_with(2, v); },
      [&](const Value& v) { return object_with(3, v); },
      [&](const Value& v) { return object_with(4, v); },
      [&](const Value& v) { return object_with(5, v); },
  };
  for (const auto& outer : holders)
    for (const auto& inner : holders) {
      CHECK(outer(inner(tensor)).holds_tensors());
      CHECK_FALSE(outer(inner(text("a"))).holds_tensors());
    }
}

TEST_CASE("comparing shared nodes takes no exponential time") {
  CHECK(doubled(150, text("x")) == doubled(150, text("x")));
  CHECK_FALSE(doubled(150, text("x")) == doubled(150, text("y")));
}

TEST_CASE("a budget ends with a clear error") {
  ValueBudget budget(10);
  budget.spend(10);
  try {
    budget.spend();
    FAIL("no exception");
  } catch (const Error& error) {
    CHECK(error.code() == Code::kCorrupt);
    CHECK(error.status().message.find("more than 10 values") != std::string::npos);
  }
}

}  // namespace value_test
