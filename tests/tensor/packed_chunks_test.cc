// Packed chunks give back what was put in: a vector of Chunks is the oracle.
#include <tessera/base/error.h>
#include <tessera/tensor/packed_chunks.h>

#include <catch2/catch.hpp>
#include <limits>
#include <random>

namespace packed_chunks_test {

using namespace tessera;

namespace {

/// Of any rank, scalars and empty boxes among them; every third one a part of its box.
Chunk random_packed(std::mt19937_64& random) {
  Box box;
  std::vector<std::int64_t> extents(random() % 6);
  for (std::int64_t& extent : extents) {
    extent = static_cast<std::int64_t>(random() % 5);
    box.origin.push_back(static_cast<std::int64_t>(random() % 1000));
  }
  box.shape = Shape(std::move(extents));
  Chunk chunk = Chunk::whole_of(std::move(box));
  if (random() % 3 == 0 && chunk.flat_end > 0) {
    chunk.flat_begin = static_cast<std::int64_t>(random()) & 1;
    chunk.flat_end -= chunk.flat_end > chunk.flat_begin ? 1 : 0;
    chunk.flat_end = std::max(chunk.flat_end, chunk.flat_begin);
  }
  return chunk;
}

void require_equal(const PackedChunks& packed, const std::vector<Chunk>& chunks) {
  REQUIRE(packed.size() == chunks.size());
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const ChunkView view = packed[i];
    const Chunk& chunk = chunks[i];
    REQUIRE(view.chunk() == chunk);
    REQUIRE(view.box() == chunk.box);
    REQUIRE(view == ChunkView(chunk));
    REQUIRE(view.rank() == chunk.box.rank());
    REQUIRE(view.numel() == chunk.numel());
    REQUIRE(view.box_numel() == chunk.box.numel());
    REQUIRE(view.is_whole_box() == chunk.is_whole_box());
    REQUIRE(view.to_string() == chunk.to_string());
    for (int d = 0; d < view.rank(); ++d) {
      REQUIRE(view.begin(d) == chunk.box.begin(d));
      REQUIRE(view.end(d) == chunk.box.end(d));
    }
  }
}

}  // namespace

TEST_CASE("packed chunks are the chunks that were added") {
  std::mt19937_64 random(5);
  for (int round = 0; round < 50; ++round) {
    std::vector<Chunk> first, second;
    PackedChunks packed, more;
    if (round % 2 == 0) packed.reserve(100, 300);
    for (std::size_t i = random() % 200; i-- > 0;) {
      first.push_back(random_packed(random));
      packed.push_back(first.back());
    }
    for (std::size_t i = random() % 200; i-- > 0;) {
      second.push_back(random_packed(random));
      more.push_back(second.back());
    }
    require_equal(packed, first);
    const ChunkSlice middle(packed, first.size() / 3, first.size() / 2);
    for (std::size_t i = 0; i < middle.size(); ++i)
      REQUIRE(middle[i].chunk() == first[first.size() / 3 + i]);
    packed.append(more);
    first.insert(first.end(), second.begin(), second.end());
    require_equal(packed, first);
    REQUIRE(ChunkSlice(packed).size() == first.size());
  }
}

TEST_CASE("views of chunks differ where origin, extents or range do") {
  const PackedChunks chunks{Chunk::whole_of({{0, 0}, {2, 3}}), Chunk{{{0, 0}, {2, 3}}, 0, 5},
                            Chunk::whole_of({{1, 0}, {2, 3}}), Chunk::whole_of({{0, 0}, {3, 2}}),
                            Chunk::whole_of({{0}, {6}}),       Chunk::whole_of({{}, {}})};
  for (std::size_t a = 0; a < chunks.size(); ++a)
    for (std::size_t b = 0; b < chunks.size(); ++b) CHECK((chunks[a] == chunks[b]) == (a == b));
}

TEST_CASE("a packed whole box takes two words a dim and one more") {
  PackedChunks chunks;
  chunks.reserve(1000, 4000);
  for (std::int64_t i = 0; i < 1000; ++i) chunks.push_back(Chunk::whole_of({{4 * i, 0}, {4, 256}}));
  CHECK(chunks.memory_bytes() == 1000 * (4 + 1) * sizeof(std::int64_t));
}

TEST_CASE("an origin and extents of different ranks are no chunk") {
  PackedChunks chunks;
  const std::vector<std::int64_t> origin = {0, 0}, extents = {2};
  CHECK_THROWS_AS(chunks.push_back(ChunkView(origin, extents)), Error);
}

TEST_CASE("a chunk lies in a tensor where each element of box and range does: element by element") {
  const Shape shape{3, 2};
  const auto inside = [&](std::int64_t row, std::int64_t column) {
    return 0 <= row && row < 3 && 0 <= column && column < 2;
  };
  int many = 0;
  for (std::int64_t r = -1; r <= 4; ++r)
    for (std::int64_t c = -1; c <= 3; ++c)
      for (std::int64_t rows = 0; rows <= 4; ++rows)
        for (std::int64_t columns = 0; columns <= 3; ++columns) {
          // An empty box lies where its corners do.
          bool box = r >= 0 && c >= 0 && r + rows <= 3 && c + columns <= 2;
          if (rows > 0 && columns > 0) box = inside(r, c) && inside(r + rows - 1, c + columns - 1);
          const Chunk whole = Chunk::whole_of({{r, c}, {rows, columns}});
          ChunkView chunk(whole);
          REQUIRE(chunk.has_box_in(shape) == box);
          REQUIRE(chunk.lies_in(shape) == box);
          for (chunk.flat_begin = -1; chunk.flat_begin <= rows * columns + 1; ++chunk.flat_begin)
            for (chunk.flat_end = -1; chunk.flat_end <= rows * columns + 1; ++chunk.flat_end) {
              const bool range = chunk.flat_begin >= 0 && chunk.flat_begin <= chunk.flat_end &&
                                 chunk.flat_end <= rows * columns;
              REQUIRE(chunk.lies_in(shape) == (box && range));
              ++many;
            }
        }
  CHECK(many > 10'000);
}

TEST_CASE("numbers that overflow lie in no tensor") {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  const Shape shape{4, 4};
  const auto lies = [&](std::vector<std::int64_t> origin, std::vector<std::int64_t> extents) {
    ChunkView chunk;
    chunk.origin = origin;
    chunk.extents = extents;
    return chunk.lies_in(shape);
  };
  CHECK(lies({0, 0}, {4, 4}));
  CHECK_FALSE(lies({kMost, 0}, {1, 4}));
  CHECK_FALSE(lies({0, kMost}, {4, kMost}));
  CHECK_FALSE(lies({0, 0}, {kMost, kMost}));
  CHECK_FALSE(lies({-1, 0}, {4, 4}));
  CHECK_FALSE(lies({0, 0}, {-1, 4}));
  CHECK_FALSE(lies({0}, {4}));
  CHECK_FALSE(lies({0}, {4, 4}));
}

}  // namespace packed_chunks_test
