#include <tessera/base/error.h>
#include <tessera/layout/flat_layout.h>

#include <catch2/catch.hpp>
#include <limits>
#include <numeric>
#include <random>

namespace flat_layout_test {

using namespace tessera;

namespace {

/// The flat buffer spelled out: for each element its segment, or -1 in the tail.
std::vector<int> buffer_of(const FlatLayout& layout) {
  std::vector<int> buffer;
  for (std::size_t s = 0; s < layout.segments().size(); ++s) {
    const FlatSegment& segment = layout.segments()[s];
    REQUIRE(segment.begin == static_cast<std::int64_t>(buffer.size()));
    REQUIRE(segment.numel == segment.shape.numel());
    buffer.resize(buffer.size() + static_cast<std::size_t>(segment.numel), static_cast<int>(s));
  }
  REQUIRE(static_cast<std::int64_t>(buffer.size()) == layout.unpadded_numel());
  REQUIRE(layout.shards() * layout.shard_numel() >= layout.unpadded_numel());
  buffer.resize(static_cast<std::size_t>(layout.shards() * layout.shard_numel()), -1);
  return buffer;
}

void check_against_buffer(const FlatLayout& layout) {
  const std::vector<int> buffer = buffer_of(layout);
  const std::int64_t size = layout.shard_numel();
  for (std::int64_t rank = 0; rank < layout.shards(); ++rank) {
    std::int64_t tail = 0;
    std::int64_t padded = 0;
    for (std::int64_t i = rank * size; i < (rank + 1) * size; ++i) {
      const int s = buffer[static_cast<std::size_t>(i)];
      tail += s < 0;
      padded += s < 0 || layout.segments()[static_cast<std::size_t>(s)].is_padding();
    }
    REQUIRE(layout.tail_padded(rank) == tail);
    REQUIRE(layout.num_padded(rank) == padded);
    std::int64_t at = 0;
    for (const FlatPiece& piece : layout.pieces_of(rank)) {
      const FlatSegment& segment = layout.segments()[piece.segment];
      REQUIRE(piece.shard_offset == at);
      REQUIRE(piece.intra_begin < piece.intra_end);
      REQUIRE(piece.intra_end <= segment.numel);
      REQUIRE(segment.begin + piece.intra_begin == rank * size + at);
      at += piece.intra_end - piece.intra_begin;
    }
    REQUIRE(at + tail == size);
  }
}

}  // namespace

TEST_CASE("one parameter: every size up to 1000 over 1 to 17 shards") {
  for (std::int64_t shards = 1; shards <= 17; ++shards) {
    for (std::int64_t numel = 0; numel <= 1000; ++numel) {
      INFO(numel << " elements over " << shards);
      const FlatLayout layout({{"p", Shape{numel}}}, shards);
      // torch.chunk: ceil(numel / shards) each, padded on the right to the first one's size.
      const std::int64_t size = (numel + shards - 1) / shards;
      REQUIRE(layout.shard_numel() == size);
      std::int64_t held = 0;
      std::int64_t padded = 0;
      for (std::int64_t rank = 0; rank < shards; ++rank) {
        const std::int64_t begin = std::min(numel, rank * size);
        const std::int64_t end = std::min(numel, begin + size);
        const auto pieces = layout.pieces_of(rank);
        REQUIRE(pieces.size() == (begin < end ? 1u : 0u));
        if (begin < end) {
          REQUIRE(pieces[0].intra_begin == begin);
          REQUIRE(pieces[0].intra_end == end);
          REQUIRE(pieces[0].shard_offset == 0);
        }
        REQUIRE(layout.num_padded(rank) == size - (end - begin));
        REQUIRE(layout.tail_padded(rank) == layout.num_padded(rank));
        held += end - begin;
        padded += layout.num_padded(rank);
      }
      REQUIRE(held == numel);
      REQUIRE(held + padded == shards * size);
    }
  }
}

TEST_CASE("several parameters with alignment agree with the buffer spelled out") {
  std::mt19937_64 random(5);
  INFO("seed 5");
  for (int i = 0; i < 1500; ++i) {
    std::vector<FlatParameter> parameters(random() % 6);
    for (std::size_t p = 0; p < parameters.size(); ++p)
      parameters[p] = {"p" + std::to_string(p), Shape{static_cast<std::int64_t>(random() % 5),
                                                      static_cast<std::int64_t>(random() % 9)}};
    const auto shards = static_cast<std::int64_t>(1 + random() % 17);
    const auto align = static_cast<std::int64_t>(1 + random() % 8);
    const auto multiple = static_cast<std::int64_t>(1 + random() % 3);
    const FlatLayout layout(parameters, shards, align, multiple);
    CHECK(layout.shard_numel() % multiple == 0);
    check_against_buffer(layout);
    for (const FlatSegment& segment : layout.segments())
      if (!segment.is_padding()) REQUIRE(segment.begin % align == 0);
  }
}

TEST_CASE("padding stands between parameters, and the tail is no segment") {
  const FlatLayout layout({{"a", {3}}, {"b", {2, 2}}, {"c", {1}}}, 4, 4, 2);
  REQUIRE(layout.segments().size() == 4);
  CHECK(layout.segments()[1].is_padding());
  CHECK(layout.segments()[1].numel == 1);
  CHECK(layout.segments()[2].begin == 4);
  CHECK(layout.segments()[3].begin == 8);
  CHECK(layout.unpadded_numel() == 9);
  CHECK(layout.shard_numel() == 4);  // 9 rounded up to a multiple of 4 x 2, over 4
  CHECK(layout.num_padded(0) == 1);
  CHECK(layout.tail_padded(0) == 0);
  CHECK(layout.num_padded(2) == 3);
  CHECK(layout.num_padded(3) == 4);
}

TEST_CASE("no parameters make empty shards") {
  const FlatLayout layout({}, 3);
  CHECK(layout.shard_numel() == 0);
  CHECK(layout.pieces_of(2).empty());
  CHECK(layout.num_padded(2) == 0);
}

TEST_CASE("flat layouts that mean nothing are refused") {
  CHECK_THROWS_AS(FlatLayout({}, 0), Error);
  CHECK_THROWS_AS(FlatLayout({}, 1, 0), Error);
  CHECK_THROWS_AS(FlatLayout({}, 1, 1, 0), Error);
  const std::int64_t huge = std::numeric_limits<std::int64_t>::max();
  CHECK_THROWS_AS(FlatLayout({{"a", {huge}}, {"b", {huge}}}, 1), Error);
  CHECK_THROWS_AS(FlatLayout({{"a", {huge}}}, 2), Error);
  CHECK_THROWS_AS(FlatLayout({{"a", {1}}}, huge, 1, 2), Error);
  CHECK_THROWS_AS(FlatLayout({}, 2).pieces_of(2), Error);
  CHECK_THROWS_AS(FlatLayout({}, 2).num_padded(-1), Error);
}

}  // namespace flat_layout_test
