#include <tessera/base/error.h>
#include <tessera/tensor/chunk.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <vector>

namespace chunk_test {

using namespace tessera;

namespace {

/// Global coordinates of the box's elements in row-major order.
std::vector<std::vector<std::int64_t>> elements(const Box& box) {
  std::vector<std::vector<std::int64_t>> all = {{}};
  for (int d = 0; d < box.rank(); ++d) {
    std::vector<std::vector<std::int64_t>> next;
    for (const auto& point : all)
      for (std::int64_t x = box.begin(d); x < box.end(d); ++x) {
        next.push_back(point);
        next.back().push_back(x);
      }
    all = std::move(next);
  }
  return all;
}

void check_decomposition(const Chunk& chunk) {
  INFO(chunk.to_string());
  const auto pieces = decompose(chunk);
  const auto ravel = elements(chunk.box);
  std::vector<std::vector<std::int64_t>> joined;
  for (const ChunkPiece& piece : pieces) {
    REQUIRE_FALSE(piece.box.empty());
    REQUIRE(piece.chunk_offset == static_cast<std::int64_t>(joined.size()));
    for (auto& point : elements(piece.box)) joined.push_back(std::move(point));
  }
  REQUIRE(std::ranges::equal(joined,
                             std::span(ravel).subspan(static_cast<std::size_t>(chunk.flat_begin),
                                                      static_cast<std::size_t>(chunk.numel()))));
  REQUIRE(static_cast<int>(pieces.size()) <= std::max(1, 2 * chunk.box.rank() - 1));
}

}  // namespace

TEST_CASE("a whole box is one piece") {
  const Chunk chunk = Chunk::whole_of({{1, 2}, {3, 4}});
  CHECK(chunk.is_whole_box());
  CHECK(chunk.numel() == 12);
  REQUIRE(decompose(chunk).size() == 1);
  CHECK(decompose(chunk)[0].box == chunk.box);
  CHECK(chunk.to_string() == "[1:4,2:6]");
  CHECK(decompose(Chunk::whole_of(Box::whole(Shape{}))).size() == 1);
}

TEST_CASE("an empty range has no pieces") {
  CHECK(decompose(Chunk{{{0, 0}, {3, 4}}, 5, 5}).empty());
  CHECK(decompose(Chunk::whole_of({{0, 4}, {3, 0}})).empty());
}

TEST_CASE("a range is head rows, slabs and tail rows") {
  const auto pieces = decompose(Chunk{{{0, 0}, {5, 4}}, 2, 15});
  REQUIRE(pieces.size() == 3);
  CHECK(pieces[0].box == Box{{0, 2}, {1, 2}});
  CHECK(pieces[1].box == Box{{1, 0}, {2, 4}});
  CHECK(pieces[2].box == Box{{3, 0}, {1, 3}});
  CHECK(pieces[2].chunk_offset == 10);
}

TEST_CASE("a range outside its box is a bug of the caller") {
  CHECK_THROWS_AS(decompose(Chunk{{{0}, {4}}, 2, 5}), Error);
  CHECK_THROWS_AS(decompose(Chunk{{{0}, {4}}, -1, 2}), Error);
  CHECK_THROWS_AS(decompose(Chunk{{{0}, {4}}, 3, 2}), Error);
}

TEST_CASE("every range of small boxes decomposes into its own elements") {
  for (const Box& box : {Box{{3}, {7}}, Box{{1, 2}, {3, 4}}, Box{{0, 5, 1}, {2, 3, 2}},
                         Box{{0, 0, 0}, {1, 3, 1}}, Box{{4, 0, 2, 1}, {2, 1, 3, 2}}, Box{}}) {
    for (std::int64_t begin = 0; begin <= box.numel(); ++begin)
      for (std::int64_t end = begin; end <= box.numel(); ++end)
        check_decomposition({box, begin, end});
  }
}

TEST_CASE("random ranges of random boxes decompose into their own elements") {
  std::mt19937_64 random(7);
  INFO("seed 7");
  for (int i = 0; i < 3000; ++i) {
    Box box;
    std::vector<std::int64_t> extents;
    const int rank = static_cast<int>(random() % 6);
    for (int d = 0; d < rank; ++d) {
      box.origin.push_back(static_cast<std::int64_t>(random() % 3));
      extents.push_back(static_cast<std::int64_t>(random() % 16 == 0 ? 0 : 1 + random() % 4));
    }
    box.shape = Shape(extents);
    const auto numel = static_cast<std::uint64_t>(box.numel());
    auto begin = static_cast<std::int64_t>(random() % (numel + 1));
    auto end = static_cast<std::int64_t>(random() % (numel + 1));
    if (begin > end) std::swap(begin, end);
    check_decomposition({box, begin, end});
  }
}

}  // namespace chunk_test
