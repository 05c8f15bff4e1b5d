#pragma once
// Pieces: the parts of a dataset whose elements lie together, before they become chunks of a
// Manifest. A piece can be cut to a smaller box and looked at in other coordinates, which is all
// that virtual datasets need.
#include <tessera/state/manifest.h>
#include <tessera/tensor/box.h>

#include <string>
#include <vector>

#include "lib/format/hdf5/report.h"

namespace tessera::h5 {

struct Piece {
  Box box;  // in the dataset's coordinates
  Source::Kind kind = Source::Kind::kExtent;
  bool byte_swap = false;
  std::uint32_t file = 0;
  std::uint64_t offset = 0;  // kExtent: of the box's first element; kCoded: of the stored bytes
  std::uint64_t length = 0;  // kCoded
  std::vector<std::string> codecs;  // kCoded
  Bytes bytes;                      // kInline: the dense array; kFill: one element
  // Where the elements lie, all but kFill: steps in elements per dimension of box, and, in what is
  // decoded or inline, the number of the first.
  std::vector<std::int64_t> strides;
  std::int64_t first_element = 0;
};

/// The dataset as pieces that tile it. Throws kCorrupt where a claim leaves the file or does not
/// add up, kUnsupported naming a filter. Not for virtual and external layouts.
std::vector<Piece> pieces_of(const Dataset& dataset, DType dtype, std::uint32_t file,
                             std::uint64_t file_bytes);

/// One element where nothing is stored: the fill value in our byte order.
Bytes fill_element(const Dataset& dataset, DType dtype);

/// The part of `piece` inside `box`, which lies inside piece.box.
Piece cut(const Piece& piece, const Box& box, int element_bytes);

/// The piece as a chunk of the last tensor of `manifest`.
void add_piece(Manifest& manifest, const Piece& piece, int element_bytes);

}  // namespace tessera::h5
