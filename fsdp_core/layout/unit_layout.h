#pragma once
// UnitLayout: where the elements of a unit's parameters lie, sharded and full. One interface, two
// forms:
//
//   flat           full: one buffer, parameters end to end, padded at the end to shards x shard
//                  numel.
//                  shard r: the r-th equal piece of it. Gathers and reductions need no copy.
//   per parameter  full: one buffer each, rows padded to shards x ceil(rows / shards).
//                  shard r: chunk r of every parameter, padded, end to end. One copy each way.
//                  A parameter may be cut on another dim, which the shards divide: no padding then.
//
// All arithmetic is tessera::FlatLayout's and tessera::Layout's. Numbers are elements. Pure but for
// the copies.
#include <ATen/core/Tensor.h>
#include <tessera/fsdp/options.h>
#include <tessera/layout/flat_layout.h>
#include <tessera/tensor/shape.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tessera::fsdp {

class UnitLayout {
 public:
  struct Parameter {
    std::string fqn;
    std::vector<std::int64_t> shape;
    int dim = 0;  // that it is cut on; others than 0 with the per-parameter layout alone
  };
  struct FullPlace {
    std::size_t buffer = 0;
    std::int64_t offset = 0;
  };
  struct ShardPlace {
    std::int64_t offset = 0;          // in the shard buffer
    std::vector<std::int64_t> shape;  // of this rank's shard parameter; numel 0: holds none of it
    std::int64_t numel = 0;
    // Flat: the first element of the parameter's row-major ravel that it holds; else the first row of
    // `dim`.
    std::int64_t begin = 0;
    int dim = 0;
  };

  virtual ~UnitLayout() = default;

  /// Elements of one rank's shard buffer, padding included; equal on all ranks.
  std::int64_t shard_numel() const { return shard_numel_; }
  int shards() const { return shards_; }
  int rank() const { return rank_; }
  const std::vector<std::int64_t>& buffer_numels() const { return buffer_numels_; }
  std::int64_t full_numel() const { return shard_numel_ * shards_; }
  std::size_t parameters() const { return full_.size(); }
  const FullPlace& full(std::size_t p) const { return full_[p]; }
  const ShardPlace& shard(std::size_t p) const { return shard_[p]; }
  /// Whether every rank's shard is rows of the parameter, cut as torch.chunk cuts dim 0.
  bool is_rows(std::size_t p) const { return !in_place_ && shard_[p].dim == 0; }
  /// The part of `whole`, which has the parameter's shape and is contiguous, that this rank holds: a
  /// view of the shard's shape.
  at::Tensor part_of(const at::Tensor& whole, std::size_t p) const;
  /// Padding elements in this rank's shard buffer.
  std::int64_t num_padded() const { return num_padded_; }

  /// True: the rank-major gather output is buffer 0 itself, and gradients lie ready to be
  /// scattered.
  bool in_place() const { return in_place_; }
  /// Rank-major [shards, shard_numel] -> full buffers; and back (padding set to zero).
  virtual void copy_out(const at::Tensor& gathered, std::span<const at::Tensor> buffers) const = 0;
  virtual void copy_in(std::span<const at::Tensor> buffers, const at::Tensor& scattered) const = 0;

 protected:
  std::int64_t shard_numel_ = 0;
  std::int64_t num_padded_ = 0;
  int shards_ = 1;
  int rank_ = 0;
  bool in_place_ = true;
  std::vector<std::int64_t> buffer_numels_;
  std::vector<FullPlace> full_;
  std::vector<ShardPlace> shard_;
};

/// Throws kUnsupported: a 0-dim parameter with the per-parameter layout; a dim after 0 that the shards do
/// not divide, or with the flat layout. kInvalidArgument: no such dim.
/// `align_numel`: with the flat layout every parameter starts at a multiple of it.
std::unique_ptr<UnitLayout> make_layout(MemoryLayout kind,
                                        const std::vector<UnitLayout::Parameter>& parameters,
                                        int shards, int rank, std::int64_t align_numel = 1);

}  // namespace tessera::fsdp
