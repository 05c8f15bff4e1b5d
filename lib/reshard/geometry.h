#pragma once
// Geometry: one tensor as the data path sees it. Dimensions that no chunk cuts are merged, so that
// a row-sharded (or flat-sharded) tensor of any rank is one-dimensional and may be cut anywhere,
// and a column-sharded one has as few dims as its cuts need.
//
//   tensor [L, N, M], chunks along dim 0 or flat ranges     -> [L*N*M]
//   tensor [L, N, M], chunks along dim 1                    -> [L, N*M]
//
// Works on a *prefix-fixed* region (all dims before k one index, all after k whole): there every
// piece of every chunk is one contiguous run of that chunk's own ravel, on the source side and on
// the target side alike.
#include <tessera/state/manifest.h>

#include <memory>
#include <optional>
#include <vector>

#include "lib/reshard/piece_table.h"

namespace tessera {

/// A stored chunk that the plan reads.
struct SourceChunk {
  std::uint64_t chunk = 0;                             // index in Manifest::chunks
  const std::vector<std::int64_t>* strides = nullptr;  // elements per dim; null: row-major dense
  std::int64_t numel = 0;
  std::int64_t first_element = 0;  // of what a coded item decodes to
};

struct Geometry;

/// What computed elements are made of (Manifest::computed), one geometry per part.
struct PartGeometries {
  std::uint32_t computed = 0;  // index in Manifest::computed
  std::vector<std::shared_ptr<const Geometry>> parts;
};

struct Geometry {
  std::vector<std::int64_t> shape;  // collapsed; never empty
  int element_bytes = 1;            // of the tensor
  int stored_element_bytes = 1;     // differs where elements are cast while they are read
  bool collapsed = true;            // false: dims are the tensor's own (a scalar has one dim of 1)
  PieceTable sources;               // owner: index in source_chunks
  PieceTable targets;               // owner: index in the list of target chunks given
  std::vector<SourceChunk> source_chunks;
  std::vector<PartGeometries> computed;  // of the source chunks
  bool has_strided = false;
  bool has_coded = false;  // here or in what is computed of it
  bool has_pending = false;

  Region whole() const;
  std::int64_t numel() const;
  std::size_t memory_bytes() const;
};

/// `chunks`: indices in Manifest::chunks, relative to the tensor's first, that are to be read
/// (exact replicas left out). `targets`: what is to be written, in global coordinates; may be empty
/// (a reader of the whole). Sub-byte tensors become one row of bytes: both sides must then be
/// single whole chunks (else kUnsupported).
Geometry make_geometry(const Manifest& manifest, std::uint32_t tensor,
                       std::span<const std::uint32_t> chunks, std::span<const Chunk> targets);

/// Index in Manifest::computed of a computed source.
inline std::uint32_t computed_index(const Manifest& manifest, const Source& source) {
  return source.view != 0 ? manifest.views[source.side].codecs : source.side;
}

/// A flat range of the collapsed tensor, cut into prefix-fixed regions in order: visit(Region).
template <class Visit>
void for_each_region(const Geometry& geometry, std::int64_t begin, std::int64_t end,
                     Visit&& visit) {
  if (begin == end) return;
  if (geometry.shape.size() == 1) {
    visit(Region{{begin, end}});
    return;
  }
  Chunk range{Box::whole(Shape(geometry.shape)), begin, end};
  for (const ChunkPiece& piece : decompose(range)) {
    Region region;
    for (int d = 0; d < piece.box.rank(); ++d)
      region.push_back({piece.box.begin(d), piece.box.end(d)});
    visit(region);
  }
}

/// Row-major strides of a dense array of this region's shape.
std::vector<std::int64_t> dense_strides(RegionView region);

/// Cuts a region into prefix-fixed regions of at most `max_numel` (>= 1) elements, in row-major
/// order.
class RegionCursor {
 public:
  RegionCursor(RegionView whole, std::int64_t max_numel);
  /// The next one in `out`; false at the end.
  bool next(Region& out);

 private:
  Region whole_;
  std::size_t split_dim_ = 0;
  std::int64_t step_ = 1;         // indices of split_dim_ per region
  std::vector<std::int64_t> at_;  // dims [0, split_dim_]
  bool done_ = false;
};

}  // namespace tessera
