#pragma once
// The structure of a live state as bytes: its entries, all but where their memory is and what the
// values are. States of equal bytes have equal structures, so that a save need not look at the
// tensors of a state to know whether it was planned before. One entry after the other, without a
// count:
//
//   entry    what it is and whether its name is its path's, as one number; the path, the name if it
//            is another; of a tensor its type and flags, its shape, and its pieces
//   pieces   each a mark, the chunk and the strides; after the last a 0
//
// Entries are appended as a state grows, and so are pieces to its last entry.
#include <tessera/state/live_state.h>

#include <string>
#include <vector>

#include "lib/state/live/wire.h"

namespace tessera {

/// One entry, without memory and content.
struct StructureEntry {
  enum class Kind : std::uint8_t { kTensor, kShared, kPerRank };
  Kind kind = Kind::kTensor;
  std::string name;
  Path path;
  TensorSpec spec;  // kTensor, as are the next four
  bool replicated = false;
  bool is_parameter = false;
  bool of_first_rank = false;  // buffers: ranks' may differ, and one rank's belong together
  std::vector<Chunk> chunks;   // as many as the rank has pieces, empty ones too
};

/// Appends the structure of `entry`, one of `contents`. False: it refers to a tensor that is not
/// there, and nothing is appended.
bool append_structure(const LiveContents& contents, const StateEntry& entry, LiveStructure& out);
/// Appends one more piece of the tensor that was appended last.
void append_piece_structure(const LivePiece& piece, LiveStructure& out);
/// The whole of it; false as above.
bool append_structure(const LiveContents& contents, LiveStructure& out);

/// Bytes of `elements` stored side by side; the last byte may be half full.
std::uint64_t byte_size(std::int64_t elements, DType dtype);

/// That of `state`, or, where it has none, `anew`, made here; nullptr: an entry means a tensor that
/// is not there.
const LiveStructure* structure_of(const LiveState& state, LiveStructure& anew);

/// The next one. Throws kCorrupt.
StructureEntry read_structure_entry(WireReader& in);

}  // namespace tessera
