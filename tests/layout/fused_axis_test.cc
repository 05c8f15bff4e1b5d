// Fused dims against a direct definition: index i of the fused dim belongs to the part whose turn
// it is. And tensor parallelism: what the ranks hold together is the fused dim, part by part.
#include <tessera/base/error.h>
#include <tessera/layout/fused_axis.h>

#include <catch2/catch.hpp>
#include <map>
#include <numeric>

namespace fused_axis_test {

using namespace tessera;

namespace {

/// (part, index in it) of every index, by walking the dim.
std::vector<std::pair<int, std::int64_t>> walk(const FusedAxis& axis, std::int64_t extent) {
  const std::int64_t units = std::accumulate(axis.ratios.begin(), axis.ratios.end(), 0L);
  const std::int64_t groups = axis.groups == 0 ? extent / units : axis.groups;
  const std::int64_t unit = extent / units / groups;
  std::map<int, std::int64_t> next;
  std::vector<std::pair<int, std::int64_t>> out;
  for (std::int64_t g = 0; g < groups; ++g)
    for (std::size_t p = 0; p < axis.ratios.size(); ++p)
      for (std::int64_t i = 0; i < axis.ratios[p] * unit; ++i)
        out.emplace_back(static_cast<int>(p), next[static_cast<int>(p)]++);
  return out;
}

}  // namespace

TEST_CASE("runs of a fused dim say for every index which part it is of") {
  const std::vector<FusedAxis> axes{{0, {1, 1}, 1, {}},    {0, {4, 1, 1}, 1, {}},
                                    {0, {2, 1, 1}, 3, {}}, {0, {1, 1, 1}, 4, {}},
                                    {0, {1, 1}, 0, {}},    {0, {1, 1, 1}, 0, {}}};
  for (const FusedAxis& axis : axes) {
    const std::int64_t extent = 48;
    const auto expected = walk(axis, extent);
    std::vector<int> seen(static_cast<std::size_t>(extent));
    for (const FusedRun& run : axis.runs(extent)) {
      for (std::int64_t i = 0; i < run.size; ++i) {
        const auto at = static_cast<std::size_t>(run.fused_begin + i * run.fused_step);
        CHECK(expected[at] == std::pair(run.part, run.part_begin + i));
        ++seen[at];
      }
    }
    CHECK(seen == std::vector<int>(seen.size(), 1));
    for (std::size_t p = 0; p < axis.ratios.size(); ++p) {
      std::int64_t count = 0;
      for (const auto& [part, index] : expected) count += part == static_cast<int>(p);
      CHECK(axis.part_extent(extent, static_cast<int>(p)) == count);
    }
  }
}

TEST_CASE("each tensor parallel rank holds its share of every part") {
  const std::vector<FusedAxis> axes{{0, {1, 1}, 1, {}}, {0, {2, 1, 1}, 8, {}}, {0, {1, 1}, 0, {}}};
  for (const FusedAxis& axis : axes) {
    for (const std::int64_t parts : {1, 2, 4, 8}) {
      const std::int64_t extent = 64;
      const auto expected = walk(axis, extent);
      std::vector<int> seen(static_cast<std::size_t>(extent));
      for (std::int64_t r = 0; r < parts; ++r) {
        for (const RowRange& rows : axis.shard_rows(extent, parts, r)) {
          for (std::int64_t i = rows.begin; i < rows.end; ++i) {
            const auto [part, index] = expected[static_cast<std::size_t>(i)];
            const std::int64_t share = axis.part_extent(extent, part) / parts;
            CHECK(index / share == r);
            ++seen[static_cast<std::size_t>(i)];
          }
        }
      }
      CHECK(seen == std::vector<int>(seen.size(), 1));
    }
  }
}

TEST_CASE("a part that does not divide is refused though the whole would") {
  const FusedAxis gate_up{0, {1, 1}, 1, {"gate", "up"}};
  CHECK_THROWS_WITH(gate_up.shard_rows(12, 4, 0), Catch::Contains("gate of 6 indices"));
  CHECK_THROWS_AS(gate_up.runs(7), Error);
  const FusedAxis grouped{0, {2, 1, 1}, 3, {}};
  CHECK_THROWS_WITH(grouped.shard_rows(48, 2, 0), Catch::Contains("3 groups"));
  CHECK_THROWS_AS(grouped.runs(40), Error);
}

}  // namespace fused_axis_test
