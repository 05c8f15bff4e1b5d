// Numbers that are values of a checkpoint and elements in memory: what lands is what is stored, or it
// is refused. The oracle: 80 bits hold every integer and real of 64.
#include "lib/live/live_numbers.h"

#include <tessera/base/error.h>
#include <tessera/tensor/cast.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <optional>
#include <random>

namespace live_numbers_test {

using namespace tessera;

namespace {

constexpr double k2To63 = 9223372036854775808.0;

/// What lands, as the widest real there is; nullopt: refused as out of range.
std::optional<long double> landed(const Value& value, DType dtype) {
  Bytes bytes;
  try {
    bytes = number_bytes(value, dtype, /*exact=*/true);
  } catch (const Error& error) {
    REQUIRE(error.code() == Code::kOutOfRange);
    return std::nullopt;
  }
  if (dtype == DType::kUInt64) return load_le<std::uint64_t>(bytes.data());
  if (is_integer(dtype)) {
    Bytes wide(8);
    cast_elements(dtype, bytes, DType::kInt64, wide);
    return load_le<std::int64_t>(wide.data());
  }
  double real = 0;
  to_double(dtype, bytes, {&real, 1});
  return real;
}

}  // namespace

TEST_CASE("whole numbers land exactly or are refused, whatever they are stored as") {
  std::mt19937_64 random(11);
  const DType types[] = {DType::kInt8,     DType::kUInt8,   DType::kInt32,
                         DType::kInt64,    DType::kUInt64,  DType::kFloat16,
                         DType::kBFloat16, DType::kFloat32, DType::kFloat64};
  int taken = 0, refused = 0;
  for (int round = 0; round < 20000; ++round) {
    const std::uint64_t bits = random() >> random() % 64;
    Value value = Value::integer(static_cast<std::int64_t>(bits));
    long double wanted = static_cast<std::int64_t>(bits);
    if (round % 3 == 1) {
      const double real = std::ldexp(static_cast<double>(bits), static_cast<int>(random() % 20));
      value = Value::real(round % 2 == 0 ? real : -real);
      wanted = value.as_real();
    } else if (round % 3 == 2) {
      value = Value::big_integer(std::to_string(bits));
      wanted = bits;
    }
    for (const DType type : types) {
      const auto found = landed(value, type);
      ++(found ? taken : refused);
      if (found) REQUIRE(*found == wanted);
      if (type == DType::kFloat64)
        REQUIRE(found.has_value() == (static_cast<double>(wanted) == wanted));
      if (type == DType::kUInt64)
        REQUIRE(found.has_value() ==
                (wanted >= 0 && wanted < 2 * static_cast<long double>(k2To63)));
      if (type == DType::kInt64)
        REQUIRE(found.has_value() == (wanted >= -k2To63 && wanted < k2To63));
    }
  }
  CHECK(taken > 20000);
  CHECK(refused > 20000);
}

TEST_CASE("numbers that a type has no room for are refused") {
  for (const auto& [number, type] : {std::pair(1e300, DType::kFloat32),
                                     {1e300, DType::kBFloat16},
                                     {1e19, DType::kFloat16},
                                     {70000.5, DType::kFloat16},
                                     {-70000.5, DType::kFloat16},
                                     {0.5, DType::kInt32},
                                     {1e300, DType::kInt64},
                                     {std::numeric_limits<double>::infinity(), DType::kInt64},
                                     {std::nan(""), DType::kInt64}})
    CHECK(!landed(Value::real(number), type));
  CHECK(!landed(Value::big_integer("-9223372036854775809"), DType::kInt64));
  CHECK(!landed(Value::big_integer("18446744073709551616"), DType::kUInt64));
  CHECK(!landed(Value::big_integer("18446744073709551617"), DType::kFloat64));
}

TEST_CASE("parts of numbers are rounded, and what is no finite number stays so") {
  CHECK(landed(Value::real(0.1), DType::kFloat32) == 0.1f);
  CHECK(landed(Value::real(65504.5), DType::kFloat16) == 65504.0L);
  CHECK(landed(Value::real(-0.0), DType::kInt8) == 0.0L);
  CHECK(landed(Value::big_integer("18446744073709551616"), DType::kFloat32) ==
        std::ldexp(1.0L, 64));
  CHECK(landed(Value::real(-std::numeric_limits<double>::infinity()), DType::kFloat16) ==
        -std::numeric_limits<long double>::infinity());
  CHECK(std::isnan(*landed(Value::real(std::nan("")), DType::kBFloat16)));
}

}  // namespace live_numbers_test
