#include <tessera/base/error.h>
#include <tessera/layout/flat_layout.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>
#include <numeric>
#include <random>

namespace flat_layout_test {

using namespace tessera;

namespace {

/// The flat buffer spelled out: for each element its parameter, kPadding between parameters, kTail.
constexpr int kPadding = -1, kTail = -2;
std::vector<int> buffer_of(const FlatLayout& layout) {
  std::vector<int> buffer(static_cast<std::size_t>(layout.unpadded_numel()), kPadding);
  std::int64_t end = 0;
  for (std::size_t p = 0; p < layout.segments().size(); ++p) {
    const FlatSegment& segment = layout.segments()[p];
    REQUIRE(segment.begin >= end);
    REQUIRE(segment.numel == segment.shape.numel());
    end = segment.end();
    REQUIRE(end <= layout.unpadded_numel());
    for (std::int64_t i = segment.begin; i < end; ++i)
      buffer[static_cast<std::size_t>(i)] = static_cast<int>(p);
  }
  REQUIRE(layout.shards() * layout.shard_numel() >= layout.unpadded_numel());
  buffer.resize(static_cast<std::size_t>(layout.shards() * layout.shard_numel()), kTail);
  return buffer;
}

void check_against_buffer(const FlatLayout& layout) {
  const std::vector<int> buffer = buffer_of(layout);
  const std::int64_t size = layout.shard_numel();
  for (std::int64_t rank = 0; rank < layout.shards(); ++rank) {
    const auto first = buffer.begin() + rank * size, last = first + size;
    REQUIRE(layout.tail_padded(rank) == std::count(first, last, kTail));
    REQUIRE(layout.num_padded(rank) ==
            std::count(first, last, kTail) + std::count(first, last, kPadding));
    // The shard's elements by its pieces, and what those leave is padding.
    std::vector<int> shard(static_cast<std::size_t>(size), kPadding);
    for (const FlatPiece& piece : layout.pieces_of(rank)) {
      const FlatSegment& segment = layout.segments()[piece.parameter];
      REQUIRE(piece.begin < piece.end);
      REQUIRE(piece.end <= segment.numel);
      REQUIRE(segment.begin + piece.begin == rank * size + piece.offset);
      for (std::int64_t i = 0; i < piece.numel(); ++i) {
        int& element = shard.at(static_cast<std::size_t>(piece.offset + i));
        REQUIRE(element == kPadding);  // no element twice
        element = static_cast<int>(piece.parameter);
      }
    }
    REQUIRE(std::equal(first, last, shard.begin(),
                       [](int wanted, int found) { return found == std::max(wanted, kPadding); }));
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
          REQUIRE(pieces[0].begin == begin);
          REQUIRE(pieces[0].end == end);
          REQUIRE(pieces[0].offset == 0);
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
    REQUIRE(layout.segments().size() == parameters.size());
    for (const FlatSegment& segment : layout.segments()) REQUIRE(segment.begin % align == 0);
    std::vector<std::int64_t> behind(parameters.size());
    for (std::int64_t& padding : behind) padding = static_cast<std::int64_t>(random() % 4);
    const FlatLayout stated = FlatLayout::with_padding(parameters, behind, shards, multiple);
    check_against_buffer(stated);
    std::int64_t end = 0;
    for (std::size_t p = 0; p < behind.size(); ++p) {
      REQUIRE(stated.segments()[p].begin == end);
      end = stated.segments()[p].end() + behind[p];
    }
    REQUIRE(stated.unpadded_numel() == end);
  }
}

TEST_CASE("padding stands between parameters and at the end, and belongs to none") {
  const FlatLayout layout({{"a", {3}}, {"b", {2, 2}}, {"c", {1}}}, 4, 4, 2);
  REQUIRE(layout.segments().size() == 3);
  CHECK(layout.segments()[0].end() == 3);
  CHECK(layout.segments()[1].begin == 4);
  CHECK(layout.segments()[2].begin == 8);
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
  CHECK_THROWS_AS(FlatLayout::with_padding({{"a", {1}}}, {}, 1, 1), Error);
  CHECK_THROWS_AS(FlatLayout::with_padding({{"a", {1}}}, {-1}, 1, 1), Error);
  CHECK_THROWS_AS(FlatLayout::with_padding({{"a", {1}}}, {huge}, 1, 1), Error);
  CHECK_THROWS_AS(FlatLayout({}, 2).pieces_of(2), Error);
  CHECK_THROWS_AS(FlatLayout({}, 2).num_padded(-1), Error);
}

}  // namespace flat_layout_test
