#include "fsdp_core/layout/unit_layout.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/layout/layout.h>

#include <numeric>

namespace tessera::fsdp {
namespace {

std::int64_t numel_of(const std::vector<std::int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

class FlatUnit final : public UnitLayout {
 public:
  FlatUnit(const std::vector<Parameter>& parameters, int shards, int rank, std::int64_t align) {
    std::vector<FlatParameter> members;
    for (const Parameter& p : parameters) members.push_back({p.fqn, Shape(p.shape)});
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
      const std::int64_t rows = p.shape[0];
      const std::int64_t row_numel = rows == 0 ? 0 : numel_of(p.shape) / rows;
      const std::int64_t chunk = (rows + shards - 1) / shards * row_numel;
      const RowRange mine = chunk_rows(rows, shards, rank);
      ShardPlace place;
      place.offset = shard_numel_;
      place.shape = p.shape;
      place.shape[0] = mine.end - mine.begin;
      place.numel = (mine.end - mine.begin) * row_numel;
      place.begin = mine.begin * row_numel;
      num_padded_ += chunk - place.numel;
      full_.push_back({buffer_numels_.size(), 0});
      buffer_numels_.push_back(chunk * shards);
      shard_.push_back(std::move(place));
      chunks_.push_back(chunk);
      shard_numel_ += chunk;
    }
  }
  void copy_out(const at::Tensor& gathered, std::span<const at::Tensor> buffers) const override {
    c10::SmallVector<at::Tensor, 32> out;
    for (const at::Tensor& buffer : buffers) out.push_back(buffer.view({shards_, -1}));
    at::split_with_sizes_copy_out(out, gathered.view({shards_, shard_numel_}), chunks_, 1);
  }
  void copy_in(std::span<const at::Tensor> buffers, const at::Tensor& scattered) const override {
    at::Tensor target = scattered.view({shards_, shard_numel_});
    std::vector<at::Tensor> parts = target.split_with_sizes(chunks_, 1);
    for (std::size_t b = 0; b < buffers.size(); ++b)
      parts[b].copy_(buffers[b].view({shards_, chunks_[b]}));
  }

 private:
  std::vector<std::int64_t> chunks_;
};

}  // namespace

std::unique_ptr<UnitLayout> make_layout(MemoryLayout kind,
                                        const std::vector<UnitLayout::Parameter>& parameters,
                                        int shards, int rank, std::int64_t align_numel) {
  if (kind == MemoryLayout::kFlat)
    return std::make_unique<FlatUnit>(parameters, shards, rank, align_numel);
  return std::make_unique<PerParameterUnit>(parameters, shards, rank);
}

}  // namespace tessera::fsdp
