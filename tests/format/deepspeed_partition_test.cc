// The arithmetic of ZeRO partitions against a worked table and brute force.
#include <tessera/base/error.h>

#include <catch2/catch.hpp>
#include <random>
#include <string>

#include "lib/format/deepspeed_zero/partition.h"
#include "lib/format/deepspeed_zero/places.h"

namespace tessera::deepspeed::deepspeed_partition_test {
namespace {

constexpr std::int64_t kPadding = -1;

/// Every element of a group's flat buffer: parameter * 1000 + element, or kPadding.
std::vector<std::int64_t> flat_by_hand(const std::vector<std::int64_t>& numels,
                                       std::int64_t world_size) {
  std::vector<std::int64_t> flat;
  for (std::size_t p = 0; p < numels.size(); ++p)
    for (std::int64_t i = 0; i < numels[p]; ++i)
      flat.push_back(static_cast<std::int64_t>(p) * 1000 + i);
  while (flat.size() % static_cast<std::size_t>(2 * world_size) != 0) flat.push_back(kPadding);
  return flat;
}

std::vector<std::vector<NamedShape>> one_group(const std::vector<std::int64_t>& numels) {
  std::vector<std::vector<NamedShape>> shapes(1);
  for (std::size_t p = 0; p < numels.size(); ++p)
    shapes[0].push_back({"p" + std::to_string(p), Shape{numels[p]}});
  return shapes;
}

/// One group of stages 1 and 2 as the writer lays it out.
FlatLayout group_of(const std::vector<std::int64_t>& numels, std::int64_t world_size,
                    std::vector<std::int64_t> behind = {}) {
  std::vector<FlatParameter> members;
  for (const std::int64_t numel : numels)
    members.push_back({"p" + std::to_string(members.size()), Shape{numel}});
  behind.resize(numels.size());
  return FlatLayout::with_padding(members, behind, world_size, kPartMultiple);
}

/// Elements of all runs, checked against buffers that hold parameter * 1000 + element.
void check_runs(const std::vector<TrainedParameter>& parameters,
                const std::vector<std::int64_t>& numels,
                const std::vector<std::vector<std::int64_t>>& buffers) {
  REQUIRE(parameters.size() == numels.size());
  for (std::size_t p = 0; p < numels.size(); ++p) {
    std::int64_t next = 0;
    for (const FlatRun& run : parameters[p].runs) {
      CHECK(run.begin == next);
      for (std::int64_t i = run.begin; i < run.end; ++i)
        REQUIRE(buffers.at(run.rank).at(static_cast<std::size_t>(run.offset + i - run.begin)) ==
                static_cast<std::int64_t>(p) * 1000 + i);
      next = run.end;
    }
    CHECK(next == numels[p]);
  }
}

}  // namespace

TEST_CASE("stages 1 and 2 split 7 and 5 and 3 elements as the worked table says") {
  struct Row {
    std::int64_t world_size, part;
    std::vector<std::int64_t> paddings;
  };
  for (const Row& row : {Row{4, 4, {0, 0, 0, 1}}, Row{2, 8, {0, 1}}, Row{3, 6, {0, 0, 3}}}) {
    CAPTURE(row.world_size);
    const FlatLayout group = group_of({7, 5, 3}, row.world_size);
    CHECK(group.shard_numel() == row.part);
    std::vector<std::int64_t> paddings;
    for (std::int64_t r = 0; r < row.world_size; ++r) paddings.push_back(group.tail_padded(r));
    CHECK(paddings == row.paddings);
  }
}

TEST_CASE("stage 3 splits 7 and 5 and 3 elements as the worked table says") {
  const auto padding = [](std::int64_t numel, std::int64_t world_size) {
    return slice_of(numel, world_size, 0).room * world_size - numel;
  };
  struct Row {
    std::int64_t world_size;
    std::vector<std::int64_t> rooms, paddings;
  };
  for (const Row& row :
       {Row{4, {2, 2, 1}, {1, 3, 1}}, Row{2, {4, 3, 2}, {1, 1, 1}}, Row{3, {3, 2, 1}, {2, 1, 0}}}) {
    CAPTURE(row.world_size);
    for (std::size_t i = 0; i < 3; ++i) {
      const std::int64_t numel = std::array<std::int64_t, 3>{7, 5, 3}[i];
      CHECK(slice_of(numel, row.world_size, 0).room == row.rooms[i]);
      CHECK(padding(numel, row.world_size) == row.paddings[i]);
    }
  }
  CHECK(slice_of(5, 4, 2).begin == 4);
  CHECK(slice_of(5, 4, 2).end == 5);
  CHECK(slice_of(5, 4, 3).begin == slice_of(5, 4, 3).end);
}

TEST_CASE("fragments of random groups are what flattening and cutting gives") {
  constexpr unsigned kSeed = 20241;
  CAPTURE(kSeed);
  std::mt19937 random(kSeed);
  for (int round = 0; round < 200; ++round) {
    const auto world_size = static_cast<std::int64_t>(random() % 17 + 1);
    std::vector<std::int64_t> numels(random() % 6 + 1);
    for (std::int64_t& numel : numels) numel = static_cast<std::int64_t>(random() % 40);
    if (random() % 4 == 0) numels[random() % numels.size()] = 0;
    CAPTURE(round, world_size, numels);
    const std::vector<std::int64_t> flat = flat_by_hand(numels, world_size);
    const FlatLayout group = group_of(numels, world_size);
    REQUIRE(group.shard_numel() * world_size == static_cast<std::int64_t>(flat.size()));
    for (const bool stripped : {true, false}) {
      std::vector<std::optional<FlatSizes>> sizes;
      std::vector<std::vector<std::int64_t>> buffers;
      for (std::int64_t r = 0; r < world_size; ++r) {
        const auto begin = flat.begin() + r * group.shard_numel();
        const std::int64_t size =
            stripped ? group.shard_numel() - group.tail_padded(r) : group.shard_numel();
        buffers.emplace_back(begin, begin + size);
        sizes.push_back(FlatSizes{size});
        if (stripped) CHECK(std::ranges::count(buffers.back(), kPadding) == 0);
      }
      check_runs(places_of_stage_2(one_group(numels), {}, sizes), numels, buffers);
    }
  }
}

TEST_CASE("slices of stage 3 are what padding and cutting every parameter gives") {
  constexpr unsigned kSeed = 99;
  CAPTURE(kSeed);
  std::mt19937 random(kSeed);
  for (int round = 0; round < 200; ++round) {
    const auto world_size = static_cast<std::int64_t>(random() % 17 + 1);
    std::vector<std::int64_t> numels(random() % 6 + 1);
    for (std::int64_t& numel : numels) numel = static_cast<std::int64_t>(random() % 40);
    CAPTURE(round, world_size, numels);
    std::vector<std::vector<std::int64_t>> buffers(static_cast<std::size_t>(world_size));
    for (std::size_t p = 0; p < numels.size(); ++p) {
      const std::int64_t room = (numels[p] + world_size - 1) / world_size;
      for (std::int64_t r = 0; r < world_size; ++r)
        for (std::int64_t i = r * room; i < (r + 1) * room; ++i)
          buffers[static_cast<std::size_t>(r)].push_back(
              i < numels[p] ? static_cast<std::int64_t>(p) * 1000 + i : kPadding);
    }
    std::vector<std::optional<FlatSizes>> sizes;
    for (const auto& buffer : buffers)
      sizes.push_back(FlatSizes{static_cast<std::int64_t>(buffer.size())});
    check_runs(places_of_stage_3(one_group(numels), sizes), numels, buffers);
  }
}

TEST_CASE("alignment padding between parameters belongs to none of them") {
  // 7 elements, 1 of padding, 5 elements: as 16-byte alignment of bf16 leaves it.
  const FlatLayout group = group_of({7, 5}, 2, {1, 0});
  CHECK(group.unpadded_numel() == 13);
  CHECK(group.shard_numel() == 8);
  const auto second = group.pieces_of(1);
  REQUIRE(second.size() == 1);
  CHECK(second[0].parameter == 1);
  CHECK(second[0].offset == 0);
  CHECK(group.pieces_of(0).size() == 1);
  CHECK(group.tail_padded(1) == 3);
}

TEST_CASE("padding may take whole partitions") {
  const FlatLayout group = group_of({3}, 4);
  CHECK(group.shard_numel() == 2);
  CHECK(group.tail_padded(0) == 0);
  CHECK(group.tail_padded(1) == 1);
  CHECK(group.tail_padded(2) == 2);
  CHECK(group.tail_padded(3) == 2);
  CHECK(group.pieces_of(3).empty());
}

TEST_CASE("round robin deals parameters over bins") {
  CHECK(round_robin_order(5, 2) == std::vector<std::size_t>{0, 2, 4, 1, 3});
  CHECK(round_robin_order(2, 4) == std::vector<std::size_t>{0, 1});
  CHECK(round_robin_order(0, 4).empty());
}

TEST_CASE("sub-groups of stage 3 end where their size is reached") {
  CHECK(sub_groups({4, 3, 2}, 1000) == std::vector<std::size_t>{3});
  CHECK(sub_groups({4, 3, 2, 9}, 7) == std::vector<std::size_t>{2, 2});
  CHECK(sub_groups({4, 3, 2}, 4) == std::vector<std::size_t>{1, 2});
  CHECK(sub_groups({}, 4).empty());
}

TEST_CASE("a stage 3 parameter that straddles two buffers is put together") {
  const auto places = places_of_stage_3(one_group({6, 6}), {FlatSizes{4, 2}, FlatSizes{4, 2}});
  REQUIRE(places[1].runs.size() == 4);
  CHECK(places[1].runs[0].buffer == 0);
  CHECK(places[1].runs[1].buffer == 1);
  CHECK(places[1].runs[1].offset == 0);
  CHECK(places[1].runs[3].end == 6);
}

TEST_CASE("sizes that fit no partition name group and rank") {
  const auto message = [](const std::vector<std::optional<FlatSizes>>& ranks, bool stage_3) {
    try {
      stage_3 ? places_of_stage_3(one_group({7, 5, 3}), ranks)
              : places_of_stage_2(one_group({7, 5, 3}), {}, ranks);
    } catch (const Error& error) {
      CHECK(error.code() == Code::kCorrupt);
      return error.status().message;
    }
    return std::string();
  };
  CHECK(message({FlatSizes{8}, FlatSizes{6}}, false) ==
        "group 0: rank 1 holds 6 elements, but 15 elements over 2 ranks give it 7");
  CHECK(message({FlatSizes{9}, FlatSizes{8}}, true) ==
        "rank 1 holds 8 elements, but the parameters over 2 ranks give it 9");
  CHECK(message({FlatSizes{8, 1}, FlatSizes{7, 1}}, false) ==
        "rank 0 has 2 flat buffers, param_shapes lists 1 groups");
}

TEST_CASE("a missing rank leaves holes and moves nothing") {
  const auto places = places_of_stage_2(one_group({7, 5, 3}), {},
                                        {FlatSizes{4}, std::nullopt, FlatSizes{4}, FlatSizes{3}});
  REQUIRE(places[0].runs.size() == 1);
  REQUIRE(places[1].runs.size() == 1);
  CHECK(places[1].runs[0].rank == 2);
  CHECK(places[1].runs[0].begin == 1);
}

}  // namespace tessera::deepspeed::deepspeed_partition_test
