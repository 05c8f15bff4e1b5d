#include <fmt/format.h>
#include <tessera/tensor/box.h>
#include <tessera/tensor/chunk.h>

#include <catch2/catch.hpp>
#include <limits>
#include <random>

namespace box_test {

using namespace tessera;

namespace {

Box random_box(std::mt19937_64& random, int rank) {
  Box box;
  std::vector<std::int64_t> extents;
  for (int d = 0; d < rank; ++d) {
    box.origin.push_back(static_cast<std::int64_t>(random() % 5));
    extents.push_back(static_cast<std::int64_t>(random() % 4));
  }
  box.shape = Shape(extents);
  return box;
}

bool has_point(const Box& box, const std::vector<std::int64_t>& point) {
  for (int d = 0; d < box.rank(); ++d)
    if (point[static_cast<std::size_t>(d)] < box.begin(d) ||
        point[static_cast<std::size_t>(d)] >= box.end(d))
      return false;
  return true;
}

/// All points of the 8 x 8 x ... cube.
std::vector<std::vector<std::int64_t>> points(int rank) {
  std::vector<std::vector<std::int64_t>> all = {{}};
  for (int d = 0; d < rank; ++d) {
    std::vector<std::vector<std::int64_t>> next;
    for (const auto& point : all)
      for (std::int64_t x = 0; x < 8; ++x) {
        next.push_back(point);
        next.back().push_back(x);
      }
    all = std::move(next);
  }
  return all;
}

}  // namespace

TEST_CASE("boxes print as slices") {
  CHECK(Box{{0, 3}, {2, 2}}.to_string() == "[0:2,3:5]");
  // Of what was refused: of no region.
  CHECK(Box{{0}, {4, 2}}.to_string() == "[4,2] from [0]");
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  CHECK(Box{{1}, {kMost}}.to_string() == fmt::format("[{}] from [1]", kMost));
  CHECK(Chunk{{{0, 0}, {kMost, 2}}, 0, 4}.to_string() ==
        fmt::format("[0:{},0:2] elements [0,4)", kMost));
  CHECK(Box{}.to_string() == "[]");
}

TEST_CASE("the scalar box is one point") {
  const Box scalar = Box::whole(Shape{});
  CHECK_FALSE(scalar.empty());
  CHECK(scalar.contains(scalar));
  REQUIRE(intersect(scalar, scalar));
}

TEST_CASE("an empty box has a place") {
  const Box outer{{0, 0}, {4, 4}};
  CHECK(outer.contains(Box{{4, 0}, {0, 4}}));
  CHECK_FALSE(outer.contains(Box{{5, 0}, {0, 4}}));
  CHECK_FALSE(intersect(outer, Box{{2, 0}, {0, 4}}));
}

TEST_CASE("boxes move and move back") {
  const Box box{{2, 5}, {3, 1}};
  CHECK(box.relative_to({2, 4}) == Box{{0, 1}, {3, 1}});
  CHECK(box.relative_to({2, 4}).translated({2, 4}) == box);
}

TEST_CASE("intersect and contains agree with sets of points") {
  for (int rank = 0; rank <= 3; ++rank) {
    const auto all = points(rank);
    std::mt19937_64 random(100 + static_cast<unsigned>(rank));
    for (int i = 0; i < 200; ++i) {
      const Box a = random_box(random, rank);
      const Box b = random_box(random, rank);
      INFO("seed 100 + " << rank << ": " << a.to_string() << " and " << b.to_string());
      const auto common = intersect(a, b);
      bool any = false;
      bool inside = true;
      for (const auto& point : all) {
        const bool both = has_point(a, point) && has_point(b, point);
        any |= both;
        inside &= !has_point(b, point) || has_point(a, point);
        if (common) REQUIRE(has_point(*common, point) == both);
      }
      REQUIRE(common.has_value() == any);
      if (!b.empty()) REQUIRE(a.contains(b) == inside);
    }
  }
}

}  // namespace box_test
