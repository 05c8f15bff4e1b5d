// Python-like values as `ls` prints them.
#include <tessera/base/error.h>
#include <tessera/encoding/json.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <string>

namespace tessera::json_value_test {
namespace {

using Kind = Value::Kind;

std::string print(const Value& value) {
  ValueBudget budget(100000);
  const auto describe = [](std::uint32_t index) {
    return Value::dict({{Value::string("key"), Value::integer(index)}});
  };
  return dump_json(to_json_value(value, describe, budget));
}
Value text(const char* v) { return Value::string(v); }
Value tuple(ValueList items) { return Value::list(std::move(items), Kind::kTuple); }
Value set(ValueList items) { return Value::list(std::move(items), Kind::kSet); }

Value object(const char* module, const char* name, Value arguments, Value state = {}) {
  OpaqueObject out;
  out.how = OpaqueObject::How::kReduce;
  out.module = module;
  out.name = name;
  out.arguments = std::move(arguments);
  out.has_state = !state.is_none();
  out.state = std::move(state);
  return Value::opaque(std::move(out));
}
Value global(const char* module, const char* name) {
  OpaqueObject out;
  out.module = module;
  out.name = name;
  return Value::opaque(std::move(out));
}
Value dtype(const char* code, const char* order = "<") {
  return object("numpy", "dtype", tuple({text(code), Value::boolean(false), Value::boolean(true)}),
                tuple({Value::integer(3), text(order), Value(), Value(), Value(),
                       Value::integer(-1), Value::integer(-1), Value::integer(0)}));
}
Value array_of(Value shape, Value type, std::string data, bool fortran = false) {
  return object("numpy._core.multiarray", "_reconstruct",
                tuple({global("numpy", "ndarray"), tuple({Value::integer(0)}), Value::bytes("b")}),
                tuple({Value::integer(1), std::move(shape), std::move(type),
                       Value::boolean(fortran), Value::bytes(std::move(data))}));
}
Value array(ValueList shape, Value type, std::string data, bool fortran = false) {
  return array_of(tuple(std::move(shape)), std::move(type), std::move(data), fortran);
}

}  // namespace

TEST_CASE("plain values print as themselves, a tuple as a list") {
  CHECK(print(tuple({Value::integer(1), Value::real(2.5), text("x"), Value(),
                     Value::boolean(true)})) == R"([1,2.5,"x",null,true])");
  CHECK(print(Value::dict({{text("a"), tuple({})}})) == R"({"a":[]})");
  CHECK(print(Value::ordered_dict({{text("a"), Value::integer(1)}}, {})) == R"({"a":1})");
}

TEST_CASE("values without a JSON form print with a tag") {
  CHECK(print(Value::real(std::nan(""))) == R"({"__float__":"nan"})");
  CHECK(print(Value::real(-INFINITY)) == R"({"__float__":"-inf"})");
  CHECK(print(Value::integer((std::int64_t{1} << 53) - 1)) == "9007199254740991");
  CHECK(print(Value::integer(std::int64_t{1} << 53)) == R"({"__int__":"9007199254740992"})");
  CHECK(print(Value::integer(-(std::int64_t{1} << 53))) == R"({"__int__":"-9007199254740992"})");
  CHECK(print(Value::big_integer("1208925819614629174706176")) ==
        R"({"__int__":"1208925819614629174706176"})");
  CHECK(print(Value::bytes(std::string("\0\xFFraw", 5))) == R"({"__bytes_hex__":"00ff726177"})");
  CHECK(print(Value::bytes("a", Kind::kByteArray)) == R"({"__bytes_hex__":"61"})");
  CHECK(print(Value::bytes("a", Kind::kBytesIo)) == R"({"__bytesio_hex__":"61"})");
  CHECK(print(Value::size({2, 3})) == R"({"__size__":[2,3]})");
  CHECK(print(Value::dtype(DType::kBFloat16)) == R"({"__dtype__":"bfloat16"})");
  CHECK(print(Value::complex(1, -2)) == R"({"__complex__":[1.0,-2.0]})");
  CHECK(print(Value::tensor(7)) == R"({"__tensor__":{"key":7}})");
  CHECK(print(object("torch", "device", tuple({text("cpu")}))) ==
        R"({"__object__":"torch.device"})");
  CHECK(print(object("copyreg", "_reconstructor",
                     tuple({global("m", "C"), global("builtins", "object"), Value()}))) ==
        R"({"__object__":"m.C"})");
}

TEST_CASE("a dict with other keys than strings prints as pairs") {
  CHECK(print(Value::dict({{Value::integer(0), text("x")}, {text("k"), tuple({})}})) ==
        R"({"__dict__":[[0,"x"],["k",[]]]})");
}

TEST_CASE("sets print in the order of Python's repr") {
  CHECK(print(set({Value::integer(10), Value::integer(9), Value::integer(2)})) ==
        R"({"__set__":[10,2,9]})");
  CHECK(print(set({text("b"), text("it's"), text("a"), Value::boolean(true), Value()})) ==
        R"({"__set__":["it's","a","b",null,true]})");
  // A tuple sorts as the {"__tuple__": ..} it would be, between numbers and letters, though it
  // prints as a list.
  CHECK(print(set({tuple({Value::integer(1)}), Value::real(0.5),
                   Value::list({Value::integer(3)}, Kind::kFrozenSet)})) ==
        R"({"__set__":[0.5,{"__set__":[3]},[1]]})");
  CHECK(print(set({Value::real(1e16), Value::real(1e-5), Value::real(1e5)})) ==
        R"({"__set__":[1e+05,1e+16,1e-05]})");
}

TEST_CASE("numpy arrays and scalars print their elements") {
  const std::string ints("\0\0\0\0\1\0\0\0\2\0\0\0\3\0\0\0\xFF\xFF\xFF\xFF\5\0\0\0", 24);
  const ValueList shape = {Value::integer(2), Value::integer(3)};
  CHECK(print(array(shape, dtype("i4"), ints)) ==
        R"({"__ndarray__":[[0,1,2],[3,-1,5]],"dtype":"int32"})");
  CHECK(print(array(shape, dtype("i4"), ints, true)) ==
        R"({"__ndarray__":[[0,2,-1],[1,3,5]],"dtype":"int32"})");
  CHECK(print(array({}, dtype("u2", ">"), std::string("\1\2", 2))) ==
        R"({"__ndarray__":258,"dtype":">u2"})");
  CHECK(print(array({Value::integer(2)}, dtype("b1"), std::string("\1\0", 2))) ==
        R"({"__ndarray__":[true,false],"dtype":"bool"})");
  CHECK(print(array({Value::integer(1)}, dtype("u8"), std::string(8, '\xFF'))) ==
        R"({"__ndarray__":[{"__int__":"18446744073709551615"}],"dtype":"uint64"})");
  CHECK(print(array({Value::integer(2)}, dtype("S3"), std::string("ab\0xyz", 6))) ==
        R"({"__ndarray__":[{"__bytes_hex__":"6162"},{"__bytes_hex__":"78797a"}],"dtype":"|S3"})");
  CHECK(print(array({Value::integer(2)}, dtype("U1"), std::string("\xDF\0\0\0\x42\xF6\1\0", 8))) ==
        "{\"__ndarray__\":[\"ß\",\"🙂\"],\"dtype\":\"<U1\"}");
  CHECK(print(array({Value::integer(0), Value::integer(3)}, dtype("f4"), "")) ==
        R"({"__ndarray__":[],"dtype":"float32"})");
  CHECK(print(object("numpy._core.multiarray", "scalar",
                     tuple({dtype("f4"), Value::bytes(std::string("\0\0\xC0\x3F", 4))}))) ==
        R"({"__npscalar__":1.5,"dtype":"float32"})");
}

TEST_CASE("numpy objects that do not add up print as objects") {
  const std::string fallback = R"({"__object__":"numpy.ndarray"})";
  CHECK(print(array({Value::integer(3)}, dtype("i4"), "12345678")) == fallback);  // too few bytes
  CHECK(print(array({Value::integer(INT64_MAX), Value::integer(8)}, dtype("i4"), "")) ==
        fallback);  // overflow
  CHECK(print(array({Value::integer(-1)}, dtype("i4"), "")) == fallback);
  CHECK(print(array({Value::integer(1)}, dtype("M8"), "12345678")) == fallback);  // a date
  CHECK(print(array({Value::integer(1)}, text("i4"), "1234")) == fallback);
  CHECK(print(array({Value::integer(0), Value::integer(INT64_MAX), Value::integer(INT64_MAX)},
                    dtype("i4"), "")) == R"({"__ndarray__":[],"dtype":"int32"})");
  // A torch.Size has no bound of its own: so many dimensions would be as many nested calls.
  for (const std::size_t dims : {65, 90'000})
    CHECK(print(array_of(Value::size(std::vector<std::int64_t>(dims, 1)), dtype("i4"), "1234")) ==
          fallback);
  CHECK(print(array_of(Value::size({-1, -1}), dtype("i4"), "1234")) == fallback);
}

TEST_CASE("printing is bounded by a budget, whatever the sharing") {
  Value doubled = Value::integer(1);
  for (int i = 0; i < 60; ++i) doubled = tuple({doubled, doubled});
  CHECK_THROWS_AS(print(doubled), Error);
  CHECK_THROWS_AS(
      print(array({Value::integer(INT64_C(1) << 40), Value::integer(0)}, dtype("i4"), "")), Error);
  Value shared = Value::bytes(std::string(1 << 20, 'x'));
  ValueList many(1000, shared);
  CHECK_THROWS_AS(print(Value::list(std::move(many))), Error);
}

}  // namespace tessera::json_value_test
