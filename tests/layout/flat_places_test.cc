// Where the elements of a flat buffer lie, against every element spelled out.
#include "lib/layout/flat_places.h"

#include <tessera/layout/flat_layout.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

namespace tessera::flat_places_test {
namespace {

using Place = std::tuple<std::size_t, std::size_t, std::int64_t>;  // rank, buffer, element

std::vector<FlatRun> four_ranks() {
  return {{0, 0, 0, 4, 0}, {1, 0, 4, 8, 0}, {2, 0, 8, 12, 0}, {3, 0, 12, 15, 0}};
}

/// Every place that holds element `e` of the flat buffer, by asking each run.
std::vector<Place> places_by_hand(const std::vector<FlatRun>& runs, std::int64_t e) {
  std::vector<Place> out;
  for (const FlatRun& run : runs)
    if (run.begin <= e && e < run.end)
      out.emplace_back(run.rank, run.buffer, run.offset + e - run.begin);
  std::ranges::sort(out);
  return out;
}

/// Shards of a random layout, in buffers that hold some of them end to end; ranks may be lost.
struct Scene {
  FlatLayout layout;
  std::vector<FlatRun> runs;
};
Scene random_scene(std::mt19937_64& random) {
  const auto below = [&](std::uint64_t n) { return static_cast<std::int64_t>(random() % n); };
  std::vector<FlatParameter> parameters(static_cast<std::size_t>(below(6)));
  for (std::size_t p = 0; p < parameters.size(); ++p)
    parameters[p] = {"p" + std::to_string(p), Shape{below(4), below(7)}};
  FlatLayout layout(parameters, 1 + below(12), 1 + below(5), 1 + below(2));
  const std::int64_t size = layout.shard_numel();
  std::vector<FlatRun> runs;
  for (std::int64_t shard = 0; shard < layout.shards(); ++shard) {
    if (below(6) == 0) continue;  // lost
    // Cut in two at a random place, the parts anywhere in two buffers of the rank.
    const std::int64_t middle = shard * size + below(static_cast<std::uint64_t>(size) + 1);
    const auto rank = static_cast<std::size_t>(shard);
    runs.push_back({rank, 0, shard * size, middle, below(9)});
    runs.push_back({rank, 1, middle, (shard + 1) * size, below(9)});
  }
  std::ranges::shuffle(runs, random);
  return {std::move(layout), std::move(runs)};
}

void check_every_element(const std::vector<FlatRun>& runs, const FlatPlaces& places,
                         std::int64_t begin, std::int64_t end) {
  std::vector<std::vector<Place>> found(static_cast<std::size_t>(end - begin));
  for (const FlatRun& run : places.cut(begin, end))
    for (std::int64_t i = run.begin; i < run.end; ++i)
      found.at(static_cast<std::size_t>(i))
          .emplace_back(run.rank, run.buffer, run.offset + i - run.begin);
  for (std::int64_t e = begin; e < end; ++e) {
    std::vector<Place>& mine = found[static_cast<std::size_t>(e - begin)];
    std::ranges::sort(mine);
    REQUIRE(mine == places_by_hand(runs, e));
  }
}

}  // namespace

TEST_CASE("the picture of the header is what the code says") {
  const FlatPlaces places(four_ranks());
  CHECK(places.cut(0, 7) == std::vector<FlatRun>{{0, 0, 0, 4, 0}, {1, 0, 4, 7, 0}});
  CHECK(places.cut(7, 12) == std::vector<FlatRun>{{1, 0, 0, 1, 3}, {2, 0, 1, 5, 0}});
  CHECK(places.cut(12, 15) == std::vector<FlatRun>{{3, 0, 0, 3, 0}});
  CHECK(padding_of({{0, 3}}, 4) == std::vector<FlatRange>{{3, 4}});
}

TEST_CASE("every element of every parameter of random layouts is where its run says") {
  constexpr unsigned kSeed = 77;
  INFO("seed " << kSeed);
  std::mt19937_64 random(kSeed);
  for (int round = 0; round < 400; ++round) {
    CAPTURE(round);
    const Scene scene = random_scene(random);
    const FlatPlaces places(scene.runs);
    for (const FlatSegment& segment : scene.layout.segments())
      check_every_element(scene.runs, places, segment.begin, segment.end());
    check_every_element(scene.runs, places, 0, scene.layout.shards() * scene.layout.shard_numel());
  }
}

TEST_CASE("runs that overlap come back all") {
  std::mt19937_64 random(78);
  for (int round = 0; round < 200; ++round) {
    CAPTURE(round);
    std::vector<FlatRun> runs;
    for (std::size_t r = 0; r < 8; ++r) {
      const auto begin = static_cast<std::int64_t>(random() % 20);
      runs.push_back({r, 0, begin, begin + static_cast<std::int64_t>(random() % 12), 0});
    }
    const FlatPlaces places(runs);
    for (std::int64_t begin = 0; begin < 30; begin += 3)
      check_every_element(runs, places, begin, begin + 1 + static_cast<std::int64_t>(random() % 9));
  }
}

TEST_CASE("what a shard holds and where a parameter lies are one mapping") {
  std::mt19937_64 random(79);
  for (int round = 0; round < 200; ++round) {
    CAPTURE(round);
    const FlatLayout layout = random_scene(random).layout;
    std::vector<FlatRun> shards;
    for (std::int64_t r = 0; r < layout.shards(); ++r)
      shards.push_back({static_cast<std::size_t>(r), 0, r * layout.shard_numel(),
                        (r + 1) * layout.shard_numel(), 0});
    const FlatPlaces places(shards);
    std::int64_t pieces = 0, runs = 0;
    for (std::int64_t r = 0; r < layout.shards(); ++r) {
      std::vector<FlatRange> content;
      for (const FlatPiece& piece : layout.pieces_of(r)) {
        ++pieces;
        content.push_back({piece.offset, piece.offset + piece.numel()});
        const FlatSegment& segment = layout.segments()[piece.parameter];
        const auto found = places.cut(segment.begin + piece.begin, segment.begin + piece.end);
        REQUIRE(found == std::vector<FlatRun>{
                             {static_cast<std::size_t>(r), 0, 0, piece.numel(), piece.offset}});
      }
      std::int64_t padded = 0;
      for (const FlatRange& range : padding_of(content, layout.shard_numel()))
        padded += range.end - range.begin;
      REQUIRE(padded == layout.num_padded(r));
    }
    for (const FlatSegment& segment : layout.segments())
      if (segment.numel > 0)
        runs += static_cast<std::int64_t>(places.cut(segment.begin, segment.end()).size());
    REQUIRE(runs == pieces);
  }
}

TEST_CASE("an empty range is an empty run of the run it touches") {
  const FlatPlaces places(four_ranks());
  CHECK(places.cut(0, 0) == std::vector<FlatRun>{{0, 0, 0, 0, 0}});
  CHECK(places.cut(5, 5) == std::vector<FlatRun>{{1, 0, 0, 0, 1}});
  CHECK(places.cut(8, 8) == std::vector<FlatRun>{{2, 0, 0, 0, 0}});
  CHECK(places.cut(15, 15) == std::vector<FlatRun>{{3, 0, 0, 0, 3}});
  CHECK(places.cut(99, 99) == std::vector<FlatRun>{{3, 0, 0, 0, 3}});
  CHECK(FlatPlaces().cut(3, 3).empty());
  CHECK(FlatPlaces().cut(0, 9).empty());
}

TEST_CASE("padding is what no content covers") {
  std::mt19937_64 random(80);
  for (int round = 0; round < 300; ++round) {
    CAPTURE(round);
    const auto numel = static_cast<std::int64_t>(random() % 24);
    std::vector<bool> covered(40);
    std::vector<FlatRange> content;
    for (std::uint64_t n = random() % 5; n > 0; --n) {
      const auto begin = static_cast<std::int64_t>(random() % 26);
      content.push_back({begin, begin + static_cast<std::int64_t>(random() % 8)});
      for (std::int64_t e = begin; e < content.back().end; ++e)
        covered[static_cast<std::size_t>(e)] = true;
    }
    std::vector<bool> padding(40);
    for (const FlatRange& range : padding_of(content, numel)) {
      REQUIRE(range.begin < range.end);
      for (std::int64_t e = range.begin; e < range.end; ++e)
        padding[static_cast<std::size_t>(e)] = true;
    }
    for (std::int64_t e = 0; e < 40; ++e)
      REQUIRE(padding[static_cast<std::size_t>(e)] ==
              (e < numel && !covered[static_cast<std::size_t>(e)]));
  }
}

}  // namespace tessera::flat_places_test
