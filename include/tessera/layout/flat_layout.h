#pragma once
// FlatLayout: the arithmetic of a flat parameter. Parameters (and alignment padding) laid end to
// end in one buffer, right-padded to a multiple of the shard count, cut in equal shards.
//
//   | p0 ... | pad | p1 ........ | p2 . | tail       |
//   |  shard 0       |   shard 1       |  shard 2    |
//
//   sum(segments) + tail = shards x shard_numel
//
// Used for FSDP1 rank files (shards = world size), FairScale and fsdp_core. DeepSpeed ZeRO has rules
// of its own: lib/format/deepspeed_zero/partition.h.
// `num_padded(rank)` counts the padding elements inside rank's shard: alignment segments and tail.
#include <tessera/tensor/shape.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

struct FlatSegment {
  std::string fqn;         // empty: padding
  Shape shape;             // parameter's shape; padding: [numel]
  std::int64_t begin = 0;  // first element in the flat buffer
  std::int64_t numel = 0;
  bool is_padding() const { return fqn.empty(); }
};

/// A parameter's (or padding's) intersection with one shard.
struct FlatPiece {
  std::size_t segment = 0;       // index in segments()
  std::int64_t intra_begin = 0;  // elements of the segment's row-major ravel, half open
  std::int64_t intra_end = 0;
  std::int64_t shard_offset = 0;  // where it starts in the shard
};

struct FlatParameter {
  std::string fqn;
  Shape shape;
};

class FlatLayout {
 public:
  /// `align_numel`: every parameter starts at a multiple (1 = none; FSDP1's use_orig_params:
  ///     16 bytes / element size).
  /// `total_multiple`: the unpadded total is rounded up to a multiple of shards x total_multiple
  ///     (ZeRO-1/2: 2).
  /// Throws kInvalidArgument on a number below 1 and on overflow.
  FlatLayout(const std::vector<FlatParameter>& parameters, std::int64_t shards,
             std::int64_t align_numel = 1, std::int64_t total_multiple = 1);

  const std::vector<FlatSegment>& segments() const { return segments_; }
  std::int64_t shards() const { return shards_; }
  std::int64_t unpadded_numel() const { return unpadded_numel_; }  // sum of segments
  std::int64_t shard_numel() const { return shard_numel_; }
  /// Padding elements in this rank's shard (alignment padding and tail).
  std::int64_t num_padded(std::int64_t shard_rank) const;
  /// Tail padding alone: what torch.chunk-style sharding appends on the right of this rank's shard.
  std::int64_t tail_padded(std::int64_t shard_rank) const;
  /// Pieces in shard order; padding segments included, the tail not.
  std::vector<FlatPiece> pieces_of(std::int64_t shard_rank) const;

 private:
  std::vector<FlatSegment> segments_;
  std::int64_t shards_ = 1;
  std::int64_t unpadded_numel_ = 0;
  std::int64_t shard_numel_ = 0;
};

}  // namespace tessera
