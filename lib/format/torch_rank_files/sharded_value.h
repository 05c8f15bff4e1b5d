#pragma once
// Sharded tensors as PyTorch pickles them: a wrapper without a storage of its own, and beside it
// this rank's part with where it lies.
//
//   torch._tensor._rebuild_from_type_v2(torch._utils._rebuild_wrapper_subclass, CLASS,
//                                       (CLASS, dtype, size, stride, ...), STATE)
//   CLASS = ...sharded_tensor.api.ShardedTensor   STATE = (local shards, metadata, process group
//                                                          state, sharding spec, init_rrefs)
//   CLASS = ...tensor...DTensor                   STATE = (.., {_local_tensor, _spec: DTensorSpec})
//
// A DTensor says how it is cut (mesh, placements), and this rank's coordinate: its box follows.
#include <tessera/encoding/torch_archive.h>
#include <tessera/layout/layout.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace tessera::rank_files {

/// Elements from `first_element` on of an archive tensor are `chunk` of the whole.
struct LocalPiece {
  Chunk chunk;
  std::uint32_t tensor = 0;
  std::int64_t first_element = 0;
};

struct ShardedValue {
  TensorSpec spec;                         // of the whole
  std::vector<LocalPiece> pieces;          // of this rank; empty: it holds nothing
  std::optional<Layout> layout;            // DTensor
  std::optional<std::int64_t> world_size;  // ranks the value itself speaks of
  std::optional<std::int64_t> rank;        // whose it says it is (ShardedTensor)
  /// What other ranks hold, as this one knows it (ShardedTensor): rank and box.
  std::vector<std::pair<std::int64_t, Box>> boxes;
  bool is_parameter = false;
  bool requires_grad = false;
  /// As the wrapper itself was: of a flat parameter, whether its module is trained.
  bool wrapper_requires_grad = true;

  bool is_dtensor() const { return layout.has_value(); }
  /// False: every rank holds all of it.
  bool is_split() const;
};

/// nullopt for any other value. `rank`: whose file this is, where the value does not say. Throws
/// kCorrupt when it contradicts itself, kUnsupported for a form that is not read.
std::optional<ShardedValue> parse_sharded(const Value& value, const TorchArchive& archive,
                                          std::int64_t rank);

/// A DTensor whose local part is itself made of several tensors: rows of the whole, and that object.
struct PackedRows {
  TensorSpec spec;  // of the whole
  RowRange rows;
  Value local;
};
/// nullopt for any other value, for one whose part is no run of rows, and on a rank outside of the
/// mesh.
std::optional<PackedRows> parse_packed(const Value& value, const TorchArchive& archive,
                                       std::int64_t rank);

}  // namespace tessera::rank_files
