#include "fsdp_core/layout/unit_layout.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/layout/layout.h>

#include <numeric>

namespace tessera::fsdp {
namespace {

std::int64_t numel_of(std::span<const std::int64_t> shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

class FlatUnit final : public UnitLayout {
 public:
  FlatUnit(const std::vector<Parameter>& parameters, int shards, int rank, std::int64_t align) {
    std::vector<FlatParameter> members;
    for (const Parameter& p : parameters) {
      if (p.dim != 0)
        fail(Code::kUnsupported,
             fmt::format("parameter \"{}\" is to be cut on dim {}: the flat layout cuts the ravel",
                         p.fqn, p.dim),
             "options.layout = MemoryLayout::kPerParameter");
      members.push_back({p.fqn, Shape(p.shape)});
    }
    const FlatLayout flat(members, shards, align);
    shards_ = shards;
    rank_ = rank;
    shard_numel_ = flat.shard_numel();
    num_padded_ = flat.num_padded(rank);
    buffer_numels_ = {shard_numel_ * shards};
    for (const FlatSegment& segment : flat.segments()) full_.push_back({0, segment.begin});
    shard_.resize(full_.size());
    for (ShardPlace& place : shard_) place.shape = {0};
    for (const FlatPiece& piece : flat.pieces_of(rank))
      shard_[piece.parameter] = {piece.offset, {piece.numel()}, piece.numel(), piece.begin};
  }
  void copy_out(const at::Tensor&, std::span<const at::Tensor>) const override {}
  void copy_in(std::span<const at::Tensor>, const at::Tensor&) const override {}
};

/// A full buffer as [before the dim that is cut, shards, one shard's part of it and what follows].
struct CutBuffer {
  std::int64_t before = 1, after = 0;
};

class PerParameterUnit final : public UnitLayout {
 public:
  PerParameterUnit(const std::vector<Parameter>& parameters, int shards, int rank) {
    in_place_ = false;
    shards_ = shards;
    rank_ = rank;
    for (const Parameter& p : parameters) {
      if (p.shape.empty())
        fail(Code::kUnsupported,
             fmt::format("parameter \"{}\" has no dimension to shard (shape [])", p.fqn),
             "use the flat layout, or give it one element in one dimension");
      if (p.dim == 0)
        add_rows(p);
      else
        add_cut(p);
    }
  }
  void copy_out(const at::Tensor& gathered, std::span<const at::Tensor> buffers) const override {
    const at::Tensor from = gathered.view({shards_, shard_numel_});
    if (all_rows_) {
      c10::SmallVector<at::Tensor, 32> out;
      for (const at::Tensor& buffer : buffers) out.push_back(buffer.view({shards_, -1}));
      at::split_with_sizes_copy_out(out, from, chunks_, 1);
      return;
    }
    const std::vector<at::Tensor> parts = from.split_with_sizes(chunks_, 1);
    for (std::size_t b = 0; b < buffers.size(); ++b)
      by_shard(buffers[b], b).copy_(part(parts[b], b));
  }
  void copy_in(std::span<const at::Tensor> buffers, const at::Tensor& scattered) const override {
    at::Tensor target = scattered.view({shards_, shard_numel_});
    std::vector<at::Tensor> parts = target.split_with_sizes(chunks_, 1);
    for (std::size_t b = 0; b < buffers.size(); ++b)
      part(parts[b], b).copy_(by_shard(buffers[b], b));
  }

 private:
  /// Padded to equal numbers of rows.
  void add_rows(const Parameter& p) {
    const std::int64_t rows = p.shape[0];
    const std::int64_t row_numel = rows == 0 ? 0 : numel_of(p.shape) / rows;
    const RowRange mine = chunk_rows(rows, shards_, rank_);
    add(p, mine, row_numel, {1, (rows + shards_ - 1) / shards_ * row_numel});
  }
  void add_cut(const Parameter& p) {
    const auto dim = static_cast<std::size_t>(p.dim);
    if (p.dim < 0 || dim >= p.shape.size())
      fail(Code::kInvalidArgument,
           fmt::format("parameter \"{}\" {} is to be cut on dim {}, which it has not", p.fqn,
                       Shape(p.shape).to_string(), p.dim));
    if (p.shape[dim] % shards_ != 0)
      fail(Code::kUnsupported,
           fmt::format("parameter \"{}\" {} is to be cut on dim {}, which {} shards do not divide",
                       p.fqn, Shape(p.shape).to_string(), p.dim, shards_),
           "dim 0 can be cut unevenly");
    const std::span<const std::int64_t> shape(p.shape);
    const std::int64_t rows = p.shape[dim] / shards_;
    const std::int64_t before = numel_of(shape.first(dim)), row = numel_of(shape.subspan(dim + 1));
    all_rows_ = false;
    add(p, {rank_ * rows, (rank_ + 1) * rows}, before * row, {before, rows * row});
  }
  void add(const Parameter& p, RowRange mine, std::int64_t row_numel, CutBuffer cut) {
    ShardPlace place;
    place.offset = shard_numel_;
    place.shape = p.shape;
    place.shape[static_cast<std::size_t>(p.dim)] = mine.end - mine.begin;
    place.numel = (mine.end - mine.begin) * row_numel;
    place.begin = mine.begin;
    place.dim = p.dim;
    const std::int64_t chunk = cut.before * cut.after;
    num_padded_ += chunk - place.numel;
    full_.push_back({buffer_numels_.size(), 0});
    buffer_numels_.push_back(chunk * shards_);
    shard_.push_back(std::move(place));
    chunks_.push_back(chunk);
    cuts_.push_back(cut);
    shard_numel_ += chunk;
  }
  /// Both as [shards, before, after].
  at::Tensor by_shard(const at::Tensor& buffer, std::size_t b) const {
    return buffer.view({cuts_[b].before, shards_, cuts_[b].after}).transpose(0, 1);
  }
  at::Tensor part(const at::Tensor& of_all, std::size_t b) const {
    return of_all.view({shards_, cuts_[b].before, cuts_[b].after});
  }

  std::vector<std::int64_t> chunks_;
  std::vector<CutBuffer> cuts_;
  bool all_rows_ = true;
};

}  // namespace

at::Tensor UnitLayout::part_of(const at::Tensor& whole, std::size_t p) const {
  const ShardPlace& place = shard_[p];
  if (in_place_) return whole.view({-1}).narrow(0, place.begin, place.numel);
  const std::int64_t rows = place.shape[static_cast<std::size_t>(place.dim)];
  // An empty shard's first row may lie behind the last one.
  return whole.narrow(place.dim, rows == 0 ? 0 : place.begin, rows);
}

std::unique_ptr<UnitLayout> make_layout(MemoryLayout kind,
                                        const std::vector<UnitLayout::Parameter>& parameters,
                                        int shards, int rank, std::int64_t align_numel) {
  if (kind == MemoryLayout::kFlat)
    return std::make_unique<FlatUnit>(parameters, shards, rank, align_numel);
  return std::make_unique<PerParameterUnit>(parameters, shards, rank);
}

}  // namespace tessera::fsdp
