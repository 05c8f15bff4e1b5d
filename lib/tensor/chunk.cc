#include <fmt/format.h>
#include <tessera/base/checked.h>
#include <tessera/base/error.h>
#include <tessera/tensor/chunk.h>
#include <tessera/tensor/packed_chunks.h>

#include <algorithm>
#include <optional>

namespace tessera {
namespace {

/// `steps` steps along `dim` from element `at` of the ravel: inner dims whole, outer dims one step.
ChunkPiece slab(const Chunk& chunk, int dim, std::int64_t at, std::int64_t steps,
                std::span<const std::int64_t> strides) {
  ChunkPiece piece{chunk.box, at - chunk.flat_begin};
  for (int d = 0; d <= dim; ++d) {
    const auto i = static_cast<std::size_t>(d);
    piece.box.origin[i] += at / strides[i];
    piece.box.shape[d] = d == dim ? steps : 1;
    at %= strides[i];
  }
  return piece;
}

}  // namespace

Chunk Chunk::whole_of(Box box) {
  const std::int64_t numel = box.numel();
  return {std::move(box), 0, numel};
}

std::string Chunk::to_string() const {
  // Of what is refused too: numbers may overflow.
  std::optional<std::int64_t> numel = 1;
  for (const std::int64_t extent : box.shape.extents())
    numel = numel ? checked_mul(*numel, extent) : std::nullopt;
  if (flat_begin == 0 && flat_end == numel) return box.to_string();
  return fmt::format("{} elements [{},{})", box.to_string(), flat_begin, flat_end);
}

std::vector<ChunkPiece> decompose(const Chunk& chunk) {
  TESSERA_CHECK(ChunkView(chunk).has_range_in_box());
  if (chunk.numel() == 0) return {};
  if (chunk.is_whole_box()) return {{chunk.box, 0}};
  // Not a scalar: its only non-empty range is whole. Climb from the innermost dim while the start
  // is not aligned to the next outer one, take whole slabs of dim 0, then climb down to the end.
  const std::vector<std::int64_t> strides = chunk.box.shape.strides();
  const int rank = chunk.box.rank();
  std::vector<ChunkPiece> pieces;
  std::int64_t at = chunk.flat_begin;
  const auto take = [&](int dim, std::int64_t limit) {
    const std::int64_t stride = strides[static_cast<std::size_t>(dim)];
    const std::int64_t steps = (limit - at) / stride;
    if (steps == 0) return;
    pieces.push_back(slab(chunk, dim, at, steps, strides));
    at += steps * stride;
  };
  for (int dim = rank - 1; dim > 0; --dim) {
    const std::int64_t outer = strides[static_cast<std::size_t>(dim) - 1];
    if (at % outer != 0) take(dim, std::min(chunk.flat_end, at - at % outer + outer));
  }
  for (int dim = 0; dim < rank; ++dim) take(dim, chunk.flat_end);
  return pieces;
}

}  // namespace tessera
