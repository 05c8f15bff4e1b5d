#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/layout/fused_axis.h>

#include <numeric>

namespace tessera {
namespace {

std::string name_of(const FusedAxis& axis, std::size_t part) {
  return part < axis.names.size() ? axis.names[part] : fmt::format("part {}", part);
}

std::int64_t units_per_group(const FusedAxis& axis) {
  return std::accumulate(axis.ratios.begin(), axis.ratios.end(), std::int64_t{0});
}

}  // namespace

std::int64_t FusedAxis::unit(std::int64_t extent) const {
  TESSERA_CHECK(!ratios.empty() && groups >= 0);
  const std::int64_t units = units_per_group(*this);
  const std::int64_t cuts = groups == 0 ? units : groups * units;
  if (cuts <= 0 || extent % cuts != 0) {
    fail(Code::kInvalidArgument,
         fmt::format("dim {} of {} indices does not divide into {} groups of {} units", dim, extent,
                     groups == 0 ? extent : groups, units));
  }
  return groups == 0 ? 1 : extent / cuts;
}

std::int64_t FusedAxis::part_extent(std::int64_t extent, int part) const {
  const std::int64_t size = unit(extent);
  const std::int64_t repeats = groups == 0 ? extent / units_per_group(*this) : groups;
  return size * repeats * ratios[static_cast<std::size_t>(part)];
}

std::vector<FusedRun> FusedAxis::runs(std::int64_t extent) const {
  const std::int64_t size = unit(extent);
  const std::int64_t units = units_per_group(*this);
  std::vector<FusedRun> runs;
  if (groups == 0) {  // one run per unit of a group; a part with several units has several
    std::int64_t at = 0;
    for (std::size_t p = 0; p < ratios.size(); ++p) {
      if (ratios[p] != 1) {
        fail(Code::kInvalidArgument, "interleaved parts have the same size");
      }
      runs.push_back({static_cast<int>(p), 0, at++, units, extent / units});
    }
    return runs;
  }
  std::int64_t at = 0;
  for (std::int64_t g = 0; g < groups; ++g) {
    for (std::size_t p = 0; p < ratios.size(); ++p) {
      const std::int64_t rows = ratios[p] * size;
      runs.push_back({static_cast<int>(p), g * rows, at, 1, rows});
      at += rows;
    }
  }
  return runs;
}

std::vector<RowRange> FusedAxis::shard_rows(std::int64_t extent, std::int64_t parts,
                                            std::int64_t index) const {
  TESSERA_CHECK(parts >= 1 && index >= 0 && index < parts);
  const std::int64_t size = unit(extent);
  const std::int64_t units = units_per_group(*this);
  if (groups != 1) {
    const std::int64_t repeats = groups == 0 ? extent / units : groups;
    if (repeats % parts != 0) {
      fail(Code::kInvalidArgument,
           fmt::format("{} groups cannot be shared by {} ranks", repeats, parts),
           "choose a tensor-parallel size that divides the groups");
    }
    const std::int64_t share = repeats / parts * units * size;
    return {{index * share, (index + 1) * share}};
  }
  std::vector<RowRange> rows;
  std::int64_t at = 0;
  for (std::size_t p = 0; p < ratios.size(); ++p) {
    const std::int64_t extent_of_part = ratios[p] * size;
    if (extent_of_part % parts != 0) {
      fail(Code::kInvalidArgument,
           fmt::format("{} of {} indices cannot be shared by {} ranks", name_of(*this, p),
                       extent_of_part, parts),
           "choose a tensor-parallel size that divides every fused part");
    }
    const std::int64_t share = extent_of_part / parts;
    rows.push_back({at + index * share, at + (index + 1) * share});
    at += extent_of_part;
  }
  return rows;
}

}  // namespace tessera
