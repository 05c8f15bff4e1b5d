#include <fmt/format.h>
#include <tessera/base/checked.h>
#include <tessera/base/error.h>
#include <tessera/layout/flat_layout.h>

#include <algorithm>

namespace tessera {
namespace {

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  const auto rounded = checked_mul(ceil_div(value, multiple), multiple);
  if (!rounded) fail(Code::kInvalidArgument, "the flat buffer has more than 2^63 - 1 elements");
  return *rounded;
}

void check_rank(std::int64_t shard_rank, std::int64_t shards) {
  if (shard_rank < 0 || shard_rank >= shards)
    fail(Code::kOutOfRange, fmt::format("shard {} of {}", shard_rank, shards));
}

}  // namespace

FlatLayout::FlatLayout(const std::vector<FlatParameter>& parameters, std::int64_t shards,
                       std::int64_t align_numel, std::int64_t total_multiple)
    : shards_(shards) {
  if (shards < 1 || align_numel < 1 || total_multiple < 1)
    fail(Code::kInvalidArgument,
         fmt::format("a flat layout needs shards ({}), alignment ({}) and multiple ({}) of at "
                     "least 1",
                     shards, align_numel, total_multiple));
  std::int64_t end = 0;
  for (const FlatParameter& parameter : parameters) {
    const std::int64_t begin = round_up(end, align_numel);
    if (begin > end) segments_.push_back({{}, Shape{begin - end}, end, begin - end});
    const std::int64_t numel = parameter.shape.numel();
    const auto next = checked_add(begin, numel);
    if (!next) fail(Code::kInvalidArgument, "the flat buffer has more than 2^63 - 1 elements");
    segments_.push_back({parameter.fqn, parameter.shape, begin, numel});
    end = *next;
  }
  unpadded_numel_ = end;
  const auto multiple = checked_mul(shards, total_multiple);
  if (!multiple) fail(Code::kInvalidArgument, "shards x multiple is above 2^63 - 1");
  shard_numel_ = round_up(end, *multiple) / shards;
}

std::int64_t FlatLayout::tail_padded(std::int64_t shard_rank) const {
  check_rank(shard_rank, shards_);
  const std::int64_t begin = shard_rank * shard_numel_;
  return begin + shard_numel_ - std::clamp(unpadded_numel_, begin, begin + shard_numel_);
}

std::int64_t FlatLayout::num_padded(std::int64_t shard_rank) const {
  std::int64_t padded = tail_padded(shard_rank);
  for (const FlatPiece& piece : pieces_of(shard_rank))
    if (segments_[piece.segment].is_padding()) padded += piece.intra_end - piece.intra_begin;
  return padded;
}

std::vector<FlatPiece> FlatLayout::pieces_of(std::int64_t shard_rank) const {
  check_rank(shard_rank, shards_);
  const std::int64_t begin = shard_rank * shard_numel_;
  const std::int64_t end = std::min(begin + shard_numel_, unpadded_numel_);
  auto segment =
      std::partition_point(segments_.begin(), segments_.end(),
                           [begin](const FlatSegment& s) { return s.begin + s.numel <= begin; });
  std::vector<FlatPiece> pieces;
  for (; segment != segments_.end() && segment->begin < end; ++segment) {
    const std::int64_t from = std::max(begin, segment->begin);
    const std::int64_t to = std::min(end, segment->begin + segment->numel);
    if (from >= to) continue;  // a parameter without elements
    pieces.push_back({static_cast<std::size_t>(segment - segments_.begin()), from - segment->begin,
                      to - segment->begin, from - begin});
  }
  return pieces;
}

}  // namespace tessera
