#include <tessera/base/error.h>
#include <tessera/tensor/shape.h>

#include <catch2/catch.hpp>
#include <limits>

namespace shape_test {

using namespace tessera;

namespace {

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

void check_corrupt(const std::vector<std::int64_t>& extents) {
  try {
    Shape::checked(extents);
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(error.code() == Code::kCorrupt);
  }
}

}  // namespace

TEST_CASE("a scalar has one element and no dims") {
  CHECK(Shape{}.numel() == 1);
  CHECK(Shape{}.rank() == 0);
  CHECK(Shape{}.to_string() == "[]");
  CHECK(Shape{}.strides().empty());
}

TEST_CASE("strides are row-major") {
  const Shape shape{2, 3, 4};
  CHECK(shape.numel() == 24);
  CHECK(shape.strides() == std::vector<std::int64_t>{12, 4, 1});
  CHECK(shape.inner_numel(0) == 12);
  CHECK(shape.inner_numel(2) == 1);
  CHECK(shape.to_string() == "[2,3,4]");
  CHECK(Shape{4, 0, 3}.numel() == 0);
}

TEST_CASE("untrusted extents are checked") {
  CHECK(Shape::checked(std::vector<std::int64_t>{kMax}).numel() == kMax);
  CHECK(Shape::checked(std::vector<std::int64_t>{0, kMax}).numel() == 0);
  CHECK(Shape::checked(std::vector<std::int64_t>(kMaxRank, 1)).numel() == 1);
  check_corrupt({-1});
  check_corrupt({3, -2});
  check_corrupt({kMax, 2});
  check_corrupt({1ll << 32, 1ll << 31});
  check_corrupt({0, kMax, 2});  // strides would overflow though numel is zero
  check_corrupt(std::vector<std::int64_t>(kMaxRank + 1, 1));
}

TEST_CASE("bytes of a tensor round sub-byte elements up") {
  CHECK((TensorSpec{DType::kFloat32, Shape{4, 5}}.size_bytes()) == 80);
  CHECK((TensorSpec{DType::kFloat64, Shape{}}.size_bytes()) == 8);
  CHECK((TensorSpec{DType::kFloat4, Shape{3}}.size_bytes()) == 2);
  CHECK((TensorSpec{DType::kFloat6E2M3, Shape{4}}.size_bytes()) == 3);
  CHECK((TensorSpec{DType::kFloat6E2M3, Shape{5}}.size_bytes()) == 4);
  CHECK((TensorSpec{DType::kComplex128, Shape{0, 7}}.size_bytes()) == 0);
  CHECK((TensorSpec{DType::kBFloat16, Shape{4, 5}}.to_string()) == "bfloat16 [4,5]");
}

TEST_CASE("bytes that do not fit in 63 bits are corrupt") {
  CHECK((TensorSpec{DType::kInt8, Shape{kMax}}.size_bytes()) == kMax);
  CHECK((TensorSpec{DType::kFloat4, Shape{kMax}}.size_bytes()) == kMax / 2 + 1);
  CHECK_THROWS_AS((TensorSpec{DType::kInt16, Shape{kMax}}.size_bytes()), Error);
  CHECK_THROWS_AS((TensorSpec{DType::kFloat64, Shape{1ll << 60}}.size_bytes()), Error);
}

}  // namespace shape_test
