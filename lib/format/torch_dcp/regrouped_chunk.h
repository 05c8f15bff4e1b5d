#pragma once
// Megatron-core 0.6 to 0.15 stores optimizer state that the data-parallel ranks cut by flat ranges
// regrouped, so that every piece is a box:
//
//   a tensor [X, Y] kept in cells [x, y]        .metadata says [X/x, Y/y, x*y]
//   elements [s, e) of cell (i, j)              chunk at (i, j, s) of size (1, 1, e - s)
//
// The true shape stands in `mcore_data` of `.metadata`. Pure.
#include <tessera/tensor/chunk.h>
#include <tessera/tensor/shape.h>

#include <cstdint>

namespace tessera::dcp {

/// Source::view of a pending chunk whose item has the regrouped shape.
inline constexpr std::uint16_t kRegrouped = 1;

/// ... whose item is the flat range itself, 1-D.
inline constexpr std::uint16_t kFlatItem = 2;

/// ... whose item, 1-D, holds more than the flat range: Source::side is its first element there.
inline constexpr std::uint16_t kFlatPart = 3;

/// Where a chunk of the regrouped tensor lies in the true one. Throws kCorrupt when the shapes do
/// not belong together or the chunk is not part of one cell.
Chunk regrouped_chunk(const Shape& regrouped, const Shape& whole, const Box& stored);

/// Shape of the item that holds `chunk`. `view`: of its source.
Shape item_shape(const Chunk& chunk, std::uint16_t view);

}  // namespace tessera::dcp
