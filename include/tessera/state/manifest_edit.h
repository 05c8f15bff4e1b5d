#pragma once
// Manifest edits: tensors derived from parts of other tensors, as data. Fusing q, k and v, cutting
// a fused weight apart, stacking experts, padding a vocabulary: each is a list of pieces,
//
//   source tensor, box (every step-th index) --dims--> place in the new tensor
//
// and becomes chunks whose sources are parts of the old chunks' sources. No byte moves: planner and
// executor take derived tensors like any other, so that there is one data path.
//
//   extent    other offset, and strides where the part is no run
//   coded     a view into what the item decodes to (Manifest::views)
//   inline    the part's bytes copied
//   fill      as it is
//   pending   not cut: locate first (kInternal)
//
// Elements of sub-byte types and quantized tensors can only be taken whole and unchanged (else
// kUnsupported, naming the tensor). Pure but for the manifest given; not thread-safe on one
// manifest.
#include <tessera/state/manifest.h>
#include <tessera/state/roles.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tessera {

/// A part of a source tensor (or zeros) and where it goes.
struct TensorPiece {
  std::uint32_t source = kNoTensor;  // index in Manifest::tensors; kNoTensor: zeros
  /// The region that is taken, in the source's coordinates; its shape counts indices, not steps.
  /// For zeros only the shape matters, in the new tensor's dims.
  Box box;
  std::vector<std::int64_t> steps;  // per source dim, >= 1; empty: 1 everywhere
  /// Per dim of the new tensor: the source dim that runs along it, or -1 for a new dim of one
  /// index. Source dims that are left out must have one index. Empty: the same dims.
  std::vector<int> dims;
  std::vector<std::int64_t> origin;  // in the new tensor; empty: zeros
  /// Per dim of the new tensor: it goes to every step-th index from the origin on; empty: 1
  /// everywhere. Not for zeros.
  std::vector<std::int64_t> to_steps = {};
};

/// All of `source`, at the new tensor's origin.
TensorPiece whole_piece(const Manifest& manifest, std::uint32_t source);

/// Appends a tensor made of `pieces` and returns its index. Type, kind and flags are those of the
/// first source; sources must agree on the type. Whether the pieces cover the tensor exactly once
/// is proved where every plan is. Throws kInvalidArgument (types differ, a piece leaves its source
/// or the new tensor), kUnsupported (above).
std::uint32_t build_tensor(Manifest& manifest, std::string name, const Shape& shape,
                           std::span<const TensorPiece> pieces);

}  // namespace tessera
