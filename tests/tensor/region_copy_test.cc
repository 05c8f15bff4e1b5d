#include <tessera/base/error.h>
#include <tessera/tensor/region_copy.h>

#include <catch2/catch.hpp>
#include <numeric>
#include <random>
#include <vector>

namespace region_copy_test {

using namespace tessera;

namespace {

using Strides = std::vector<std::int64_t>;

/// Offset of every element of the region, in elements, in row-major order of the region.
std::vector<std::int64_t> offsets(const Shape& shape, const Strides& strides) {
  std::vector<std::int64_t> all = {0};
  for (int d = 0; d < shape.rank(); ++d) {
    std::vector<std::int64_t> next;
    for (const std::int64_t base : all)
      for (std::int64_t x = 0; x < shape[d]; ++x)
        next.push_back(base + x * strides[static_cast<std::size_t>(d)]);
    all = std::move(next);
  }
  return all;
}

}  // namespace

TEST_CASE("trailing dims that are dense on both sides make one run") {
  CHECK(run_numel({4, 5}, Strides{5, 1}, Strides{5, 1}) == 20);
  CHECK(run_numel({4, 5}, Strides{10, 1}, Strides{5, 1}) == 5);
  CHECK(run_numel({4, 1, 5}, Strides{5, 77, 1}, Strides{5, 1, 1}) == 20);
  CHECK(run_numel({4, 5}, Strides{1, 4}, Strides{5, 1}) == 1);
  CHECK(run_numel({4, 5, 6}, Strides{60, 6, 1}, Strides{30, 6, 1}) == 30);
  CHECK(run_numel({}, Strides{}, Strides{}) == 1);
  CHECK(run_numel({1, 1}, Strides{9, 9}, Strides{3, 3}) == 1);
  CHECK(run_numel({4, 0}, Strides{1, 1}, Strides{1, 1}) == 0);
  CHECK(run_numel({4, 5}, Strides{0, 1}, Strides{5, 1}) == 5);
}

TEST_CASE("regions copy element by element as defined, and nothing else changes") {
  std::mt19937_64 random(21);
  INFO("seed 21");
  for (int i = 0; i < 2000; ++i) {
    const int rank = static_cast<int>(random() % 5);
    const int bytes = std::vector<int>{1, 2, 3, 4, 8, 16}[random() % 6];
    std::vector<std::int64_t> extents;
    for (int d = 0; d < rank; ++d)
      extents.push_back(
          static_cast<std::int64_t>(random() % 5 == 0 ? 1 : random() % 4 + (random() % 9 != 0)));
    const Shape shape(extents);
    // The destination is a box of a larger array; the source any strides, repeats included.
    std::vector<std::int64_t> outer = extents;
    for (auto& extent : outer) extent += static_cast<std::int64_t>(random() % 3);
    const Strides to = Shape(outer).strides();
    Strides from = Shape(extents).strides();
    if (random() % 2 == 0)
      for (auto& stride : from) stride = static_cast<std::int64_t>(random() % 7);
    const auto source_at = offsets(shape, from);
    const auto destination_at = offsets(shape, to);
    const std::int64_t reach = std::accumulate(source_at.begin(), source_at.end(), std::int64_t{0},
                                               [](auto a, auto b) { return std::max(a, b); });
    std::vector<std::byte> source(static_cast<std::size_t>((reach + 1) * bytes));
    for (auto& byte : source) byte = static_cast<std::byte>(random());
    std::vector<std::byte> destination(static_cast<std::size_t>((Shape(outer).numel() + 1) * bytes),
                                       std::byte{0xEE});
    std::vector<std::byte> expected = destination;
    for (std::size_t e = 0; e < source_at.size(); ++e)
      std::copy_n(source.begin() + source_at[e] * bytes, bytes,
                  expected.begin() + destination_at[e] * bytes);
    INFO(shape.to_string() << ", " << bytes << " bytes");
    copy_region(shape, bytes, source.data(), from, destination.data(), to);
    REQUIRE(destination == expected);
  }
}

TEST_CASE("negative source strides read backwards") {
  const std::vector<std::uint8_t> source = {1, 2, 3, 4};
  std::vector<std::uint8_t> destination(4);
  copy_region({4}, 1, reinterpret_cast<const std::byte*>(source.data() + 3), Strides{-1},
              reinterpret_cast<std::byte*>(destination.data()), Strides{1});
  CHECK(destination == std::vector<std::uint8_t>{4, 3, 2, 1});
}

TEST_CASE("swapping reverses each unit") {
  std::vector<std::byte> bytes(16);
  for (const int unit : {1, 2, 4, 8}) {
    for (std::size_t i = 0; i < 16; ++i) bytes[i] = static_cast<std::byte>(i);
    swap_bytes(bytes, unit);
    const auto u = static_cast<std::size_t>(unit);
    for (std::size_t i = 0; i < 16; ++i)
      CHECK(bytes[i] == static_cast<std::byte>(i / u * u + (u - 1 - i % u)));
  }
  CHECK_THROWS_AS(swap_bytes(std::span(bytes).first(6), 4), Error);
  CHECK_THROWS_AS(swap_bytes(bytes, 16), Error);
}

}  // namespace region_copy_test
