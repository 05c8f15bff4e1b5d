// Which rank of a FairScale checkpoint holds which elements: the worked tables, brute force over
// torch.chunk's rule, and shards that do not fit together.
#include <algorithm>
#include <catch2/catch.hpp>

#include "lib/format/fairscale_fsdp/files.h"
#include "lib/format/fairscale_fsdp/shards.h"
#include "lib/format/fairscale_fsdp/target.h"

namespace fairscale_shards_test {

using namespace tessera;
using namespace tessera::fairscale;

namespace {

/// Shards as FairScale cuts them: torch.chunk, then padding to the first chunk's length.
std::vector<StoredShard> cut(std::int64_t numel, std::int64_t ranks) {
  const std::int64_t chunk = (numel + ranks - 1) / ranks;
  std::vector<StoredShard> out;
  for (std::int64_t r = 0; r < ranks; ++r) {
    std::int64_t real = 0;
    for (std::int64_t i = r * chunk; i < (r + 1) * chunk; ++i) real += i < numel;
    out.push_back({true, chunk, chunk - real});
  }
  return out;
}

std::vector<std::int64_t> real_lengths(std::int64_t numel, std::int64_t ranks) {
  const ShardPlan plan = arrange_shards(numel, cut(numel, ranks), false);
  REQUIRE(plan.problem.empty());
  std::vector<std::int64_t> out;
  for (const FlatRun& run : plan.places.runs()) out.push_back(run.numel());
  return out;
}

std::vector<std::int64_t> paddings(std::int64_t numel, std::int64_t ranks) {
  std::vector<std::int64_t> out;
  for (const StoredShard& shard : cut(numel, ranks)) out.push_back(shard.padding);
  return out;
}

/// The same from the layout that a writer uses.
void check_layout(const std::vector<std::int64_t>& numels, std::int64_t ranks,
                  const std::vector<std::int64_t>& lengths, const std::vector<std::int64_t>& pads) {
  std::vector<FlatParameter> parameters;
  std::int64_t total = 0;
  for (const std::int64_t numel : numels) {
    parameters.push_back({"p" + std::to_string(parameters.size()), Shape{numel}});
    total += numel;
  }
  const FlatLayout layout(parameters, ranks);
  CHECK(real_lengths(total, ranks) == lengths);
  CHECK(paddings(total, ranks) == pads);
  for (std::int64_t r = 0; r < ranks; ++r) {
    CHECK(layout.num_padded(r) == pads[static_cast<std::size_t>(r)]);
    CHECK(layout.shard_numel() - layout.num_padded(r) == lengths[static_cast<std::size_t>(r)]);
  }
}

}  // namespace

TEST_CASE("one wrapper of A=7 B=5 C=3 splits as FairScale's table says") {
  check_layout({7, 5, 3}, 4, {4, 4, 4, 3}, {0, 0, 0, 1});
  check_layout({7, 5, 3}, 2, {8, 7}, {0, 1});
  check_layout({7, 5, 3}, 3, {5, 5, 5}, {0, 0, 0});
  check_layout({7, 5, 3}, 7, {3, 3, 3, 3, 3, 0, 0}, {0, 0, 0, 0, 0, 3, 3});
}

TEST_CASE("one wrapper for each parameter splits as FairScale's table says") {
  check_layout({7}, 4, {2, 2, 2, 1}, {0, 0, 0, 1});
  check_layout({5}, 4, {2, 2, 1, 0}, {0, 0, 1, 2});
  check_layout({3}, 4, {1, 1, 1, 0}, {0, 0, 0, 1});
  check_layout({7}, 2, {4, 3}, {0, 1});
  check_layout({5}, 2, {3, 2}, {0, 1});
  check_layout({3}, 2, {2, 1}, {0, 1});
  check_layout({7}, 3, {3, 3, 1}, {0, 0, 2});
  check_layout({5}, 3, {2, 2, 1}, {0, 0, 1});
  check_layout({3}, 3, {1, 1, 1}, {0, 0, 0});
  check_layout({3}, 7, {1, 1, 1, 0, 0, 0, 0}, {0, 0, 0, 1, 1, 1, 1});
}

TEST_CASE("the intervals of the worked reshard 4 to 2 to 3 are A B C of the buffer") {
  // A = [0,7), B = [7,12), C = [12,15)
  const FlatPlaces four = arrange_shards(15, cut(15, 4), false).places;
  CHECK(four.cut(0, 7) == std::vector<FlatRun>{{0, 0, 0, 4, 0}, {1, 0, 4, 7, 0}});
  CHECK(four.cut(7, 12) == std::vector<FlatRun>{{1, 0, 0, 1, 3}, {2, 0, 1, 5, 0}});
  CHECK(four.cut(12, 15) == std::vector<FlatRun>{{3, 0, 0, 3, 0}});
  const FlatPlaces two = arrange_shards(15, cut(15, 2), false).places;
  CHECK(two.cut(7, 12) == std::vector<FlatRun>{{0, 0, 0, 1, 7}, {1, 0, 1, 5, 0}});
  CHECK(two.cut(12, 15) == std::vector<FlatRun>{{1, 0, 0, 3, 4}});
  const FlatPlaces three = arrange_shards(15, cut(15, 3), false).places;
  CHECK(three.cut(0, 7) == std::vector<FlatRun>{{0, 0, 0, 5, 0}, {1, 0, 5, 7, 0}});
  CHECK(three.cut(7, 12) == std::vector<FlatRun>{{1, 0, 0, 3, 2}, {2, 0, 3, 5, 0}});
  // Rank 1 of three reads [1,4) of rank 1 and [0,2) of rank 2 of four.
  CHECK(four.cut(5, 10) == std::vector<FlatRun>{{1, 0, 0, 3, 1}, {2, 0, 3, 5, 0}});
}

TEST_CASE("every element of every buffer is on exactly one rank") {
  for (std::int64_t numel = 0; numel <= 40; ++numel)
    for (std::int64_t ranks = 1; ranks <= 20; ++ranks) {
      INFO(numel << " elements, " << ranks << " ranks");
      const ShardPlan plan = arrange_shards(numel, cut(numel, ranks), false);
      REQUIRE(plan.problem.empty());
      REQUIRE(plan.outside.empty());
      std::vector<int> seen(static_cast<std::size_t>(numel));
      for (std::int64_t begin = 0; begin < numel; begin += 3)
        for (const FlatRun& run : plan.places.cut(begin, std::min(begin + 3, numel))) {
          const std::int64_t chunk = (numel + ranks - 1) / ranks;
          for (std::int64_t i = begin + run.begin; i < begin + run.end; ++i) {
            ++seen[static_cast<std::size_t>(i)];
            REQUIRE(static_cast<std::int64_t>(run.rank) == i / chunk);
            REQUIRE(run.offset + i - begin - run.begin == i % chunk);
          }
        }
      REQUIRE(std::ranges::count(seen, 1) == numel);
    }
}

TEST_CASE("an empty parameter is part of the run it touches") {
  const FlatPlaces places = arrange_shards(4, cut(4, 2), false).places;
  CHECK(places.cut(0, 0).size() == 1);
  CHECK(places.cut(2, 2).size() == 1);
  CHECK(places.cut(4, 4).size() == 1);
  CHECK(arrange_shards(0, cut(0, 3), false).places.cut(0, 0).size() == 1);
}

TEST_CASE("a rank that holds everything stands for ranks that hold copies") {
  const std::vector<StoredShard> copies(4, {true, 9, 0});
  const ShardPlan plan = arrange_shards(9, copies, true);
  CHECK(plan.problem.empty());
  CHECK(plan.whole);
  CHECK(plan.places.runs() == std::vector<FlatRun>{{0, 0, 0, 9, 0}});
  CHECK(plan.outside == std::vector<std::size_t>{1, 2, 3});
  CHECK(arrange_shards(9, copies, false).places.runs() ==
        plan.places.runs());  // known by its length alone
  std::vector<StoredShard> first_only(3);
  first_only[0] = {true, 9, 0};
  CHECK(arrange_shards(9, first_only, false).places.runs() == plan.places.runs());
}

TEST_CASE("a wrapper's process group may be smaller than the world") {
  // Two groups of two in blocks: 5 elements as 3 + 2.
  const std::vector<StoredShard> blocks = {{true, 3, 0}, {true, 3, 1}, {true, 3, 0}, {true, 3, 1}};
  const ShardPlan by_block = arrange_shards(5, blocks, false);
  CHECK(by_block.problem.empty());
  CHECK(by_block.places.runs() == std::vector<FlatRun>{{0, 0, 0, 3, 0}, {1, 0, 3, 5, 0}});
  CHECK(by_block.outside == std::vector<std::size_t>{2, 3});
  CHECK_FALSE(by_block.guessed_group);
  // ... and strided.
  const std::vector<StoredShard> strided = {{true, 3, 0}, {true, 3, 0}, {true, 3, 1}, {true, 3, 1}};
  const ShardPlan by_stride = arrange_shards(5, strided, false);
  CHECK(by_stride.problem.empty());
  CHECK(by_stride.places.runs() == std::vector<FlatRun>{{0, 0, 0, 3, 0}, {2, 0, 3, 5, 0}});
  CHECK(by_stride.outside == std::vector<std::size_t>{1, 3});
  // No padding tells the members: said so.
  CHECK(arrange_shards(6, std::vector<StoredShard>(4, {true, 3, 0}), false).guessed_group);
}

TEST_CASE("shards that do not fit together are told apart") {
  std::vector<StoredShard> shards = cut(15, 4);
  shards[2].present = false;
  const ShardPlan gap = arrange_shards(15, shards, false);
  CHECK_FALSE(gap.problem.empty());
  CHECK(gap.missing == std::vector<std::size_t>{2});
  CHECK(gap.places.runs().size() == 3);

  shards = cut(15, 4);
  shards.pop_back();
  const ShardPlan last = arrange_shards(15, shards, false);
  CHECK(last.problem.find("at least 4 ranks") != std::string::npos);
  CHECK(last.missing == std::vector<std::size_t>{3});

  shards = cut(15, 4);
  shards[3] = cut(15, 2)[1];
  CHECK(arrange_shards(15, shards, false).problem.find("different world sizes") !=
        std::string::npos);

  shards = cut(15, 4);
  shards[3].padding = 2;
  CHECK(arrange_shards(15, shards, false).problem.find("14 elements") != std::string::npos);
  shards[3].padding = 9;
  CHECK(arrange_shards(15, shards, false).problem.find("9 padding elements") != std::string::npos);
  CHECK_FALSE(arrange_shards(15, std::vector<StoredShard>(2), false).problem.empty());
}

TEST_CASE("numbers in file names are ranks, and ten comes after two") {
  std::vector<std::string> names;
  for (int r = 0; r < 12; ++r) names.push_back("ckpt_100-shard" + std::to_string(r) + ".pt");
  names.push_back("optim.pt");
  const std::vector<FileFamily> families = find_families(names);
  REQUIRE_FALSE(families.empty());
  CHECK(families[0].members.size() == 12);
  CHECK(families[0].prefix == "ckpt_100-shard");
  CHECK(families[0].members.rbegin()->first == 11);
  CHECK(families[0].name_of(12) == "ckpt_100-shard12.pt");
  CHECK(find_families({"rank_00.pt", "rank_01.pt"})[0].name_of(2) == "rank_02.pt");
}

}  // namespace fairscale_shards_test
