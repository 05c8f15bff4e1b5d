#pragma once
// Chunk: what one shard holds of one tensor. A Box and a half-open flat range of the box's
// row-major ravel (default: all of it).
//
//   DTensor shard        the box, whole range
//   flat-parameter slice the whole tensor as box, range [intra_start, intra_end)
//   ZeRO partition, Megatron bucket piece: the same
//
// A range decomposes into dense boxes: head rows, full slabs, tail rows. At most max(1, 2r-1) of
// them for rank r; each is a contiguous run of the range, in order.
#include <tessera/tensor/box.h>

#include <vector>

namespace tessera {

struct Chunk {
  Box box;                      // in the tensor's global coordinates
  std::int64_t flat_begin = 0;  // elements of box's ravel
  std::int64_t flat_end = 0;

  static Chunk whole_of(Box box);
  bool is_whole_box() const { return flat_begin == 0 && flat_end == box.numel(); }
  std::int64_t numel() const { return flat_end - flat_begin; }
  bool operator==(const Chunk&) const = default;
  std::string to_string() const;
};

/// One dense piece of a chunk: `box` in global coordinates; its first element is element
/// `chunk_offset` of the chunk's own (range) ravel, and its elements follow each other there.
struct ChunkPiece {
  Box box;
  std::int64_t chunk_offset = 0;
};

/// Splits into at most max(1, 2r-1) boxes whose runs tile [0, chunk.numel()) in order. Empty range:
/// none.
std::vector<ChunkPiece> decompose(const Chunk& chunk);

}  // namespace tessera
