#pragma once
// Do these boxes tile a region: no hole, no overlap?
#include <tessera/tensor/box.h>

#include <cstdint>
#include <optional>
#include <span>
#include <utility>

namespace tessera {

struct Tile {
  Box box;            // not empty, inside the region
  std::size_t chunk;  // whose piece it is; named in the result
};

struct Tiling {
  std::int64_t missing_numel = 0;
  std::optional<Box> first_hole;  // the one with the smallest origin
  std::optional<std::pair<std::size_t, std::size_t>> first_overlap;  // chunks, ascending
  bool proved = true;  // false: gave up (work limit); missing_numel is then a lower bound
};

/// Splits the region along free cuts (planes that cross no tile) while there are any, else at the
/// median border of the dim where it crosses the fewest. O(C log C) for grids of any rank; the work
/// is limited, so that overlapping input cannot make it quadratic.
Tiling check_tiling(const Box& region, std::span<const Tile> tiles);

}  // namespace tessera
