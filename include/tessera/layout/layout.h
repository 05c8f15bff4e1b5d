#pragma once
// Layout: a Mesh and one Placement per mesh dim. It determines which part of a tensor a rank holds.
//
// Rules (torch.distributed.tensor, checked against PyTorch 2.13's own shards in the samples):
//   - Shard applies in mesh order; each level uses ceil-chunks of what the level before left.
//   - StridedShard is deferred and applied after the later Shard on the same dim; split_factor must
//     equal the product of those later mesh sizes, else kUnsupported.
//   - An empty level places the (empty) box at the end of the global dim.
// A rank's part is one chunk, or several where a StridedShard is uneven (offset order != rank
// order). The union over all ranks covers the tensor; overlap arises only through Replicate.
#include <tessera/layout/mesh.h>
#include <tessera/layout/placement.h>
#include <tessera/tensor/chunk.h>

#include <vector>

namespace tessera {

/// Rows [begin, end) of part `index` when `extent` rows are split in `parts` by torch.chunk's rule.
struct RowRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};
RowRange chunk_rows(std::int64_t extent, std::int64_t parts, std::int64_t index);
/// The box of a tensor of `shape` that Shard(dim) gives to part `index` of `parts`.
Box chunk_box(const Shape& shape, int dim, std::int64_t parts, std::int64_t index);

class Layout {
 public:
  Layout() = default;
  /// Throws kInvalidArgument when the counts differ or a placement is Partial.
  Layout(Mesh mesh, std::vector<Placement> placements);

  const Mesh& mesh() const { return mesh_; }
  const std::vector<Placement>& placements() const { return placements_; }

  /// What `global_rank` holds of a tensor of `shape`. Throws kInvalidArgument for a dim >= rank.
  std::vector<Chunk> chunks_of(std::int64_t global_rank, const Shape& shape) const;
  /// True when this rank is the one that writes its part: coordinate 0 on every Replicate dim.
  bool is_owner(std::int64_t global_rank) const;

 private:
  Mesh mesh_;
  std::vector<Placement> placements_;
};

}  // namespace tessera
