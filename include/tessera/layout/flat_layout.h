#pragma once
// FlatLayout: the arithmetic of a flat parameter. Parameters laid end to end in one buffer, each
// from a multiple of the alignment on, the end padded, the whole cut in equal shards.
//
//   A=7 B=5 C=3, 4 shards, no alignment:   15 elements, shards of ceil(15 / 4) = 4
//
//       | A A A A | A A A B | B B B B | C C C 0 |      0: the tail
//
//   A=3 B=2, 2 shards, alignment 4:        6 elements, shards of 3
//
//       | A A A | . B B |                              .: between parameters
//
//   shard_numel = m x ceil(unpadded_numel / (shards x m)),   m: the shard multiple
//
// Elements of a shard that belong to no parameter are padding. FSDP1 and FairScale: m = 1, FSDP1 with
// use_orig_params an alignment of 16 bytes. DeepSpeed ZeRO, stages 1 and 2: m = 2.
// Which rank holds what a reader found is in lib/layout/flat_places.h.
#include <tessera/tensor/shape.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

struct FlatParameter {
  std::string fqn;
  Shape shape;
};

/// Where a parameter stands in the flat buffer.
struct FlatSegment {
  std::string fqn;
  Shape shape;
  std::int64_t begin = 0;  // first element in the flat buffer
  std::int64_t numel = 0;
  std::int64_t end() const { return begin + numel; }
};

/// Elements [begin, end) of a parameter's row-major ravel; they start at element `offset` of the
/// shard, or of the range that was asked for.
struct FlatPiece {
  std::size_t parameter = 0;  // index in segments()
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t offset = 0;
  std::int64_t numel() const { return end - begin; }
};

class FlatLayout {
 public:
  /// `align_numel`: every parameter starts at a multiple of it (1: none). `shard_multiple`: so is
  /// the size of a shard. Throws kInvalidArgument on a number below 1, kCorrupt where the buffer
  /// has more than 2^63 - 1 elements.
  FlatLayout(const std::vector<FlatParameter>& parameters, std::int64_t shards,
             std::int64_t align_numel = 1, std::int64_t shard_multiple = 1);
  /// The same with padding where a file states it: `behind` has the elements behind each parameter.
  /// kCorrupt: not one number of at least 0 for each.
  static FlatLayout with_padding(const std::vector<FlatParameter>& parameters,
                                 const std::vector<std::int64_t>& behind, std::int64_t shards,
                                 std::int64_t shard_multiple);

  /// One for each parameter, in their order.
  const std::vector<FlatSegment>& segments() const { return segments_; }
  std::int64_t shards() const { return shards_; }
  /// The buffer without its tail; padding between parameters counts.
  std::int64_t unpadded_numel() const { return unpadded_numel_; }
  std::int64_t shard_numel() const { return shard_numel_; }
  /// Elements of the shard that are no parameter's: between parameters, and the tail.
  std::int64_t num_padded(std::int64_t shard_rank) const;
  /// Tail padding alone: what torch.chunk-style sharding appends on the right of this rank's shard.
  std::int64_t tail_padded(std::int64_t shard_rank) const;
  /// What lies in the shard, ascending; parameters without elements are left out.
  std::vector<FlatPiece> pieces_of(std::int64_t shard_rank) const;
  /// The same of elements [begin, end) of the flat buffer.
  std::vector<FlatPiece> pieces_in(std::int64_t begin, std::int64_t end) const;

 private:
  void append(const FlatParameter& parameter, std::int64_t begin);
  void cut(std::int64_t shard_multiple);

  std::vector<FlatSegment> segments_;
  std::int64_t shards_ = 1;
  std::int64_t unpadded_numel_ = 0;
  std::int64_t shard_numel_ = 0;
};

}  // namespace tessera
