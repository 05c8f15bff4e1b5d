#include <fmt/format.h>
#include <tessera/base/checked.h>
#include <tessera/base/error.h>
#include <tessera/layout/flat_layout.h>

#include <algorithm>

namespace tessera {
namespace {

constexpr std::string_view kTooMany = "the flat buffer has more than 2^63 - 1 elements";

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  const auto rounded = checked_mul(ceil_div(value, multiple), multiple);
  if (!rounded) fail(Code::kCorrupt, std::string(kTooMany));
  return *rounded;
}

std::int64_t sum(std::int64_t a, std::int64_t b) {
  const auto total = checked_add(a, b);
  if (!total) fail(Code::kCorrupt, std::string(kTooMany));
  return *total;
}

void check_numbers(std::int64_t shards, std::int64_t align_numel, std::int64_t shard_multiple) {
  if (shards >= 1 && align_numel >= 1 && shard_multiple >= 1) return;
  fail(Code::kInvalidArgument,
       fmt::format("a flat layout needs shards ({}), alignment ({}) and multiple ({}) of at "
                   "least 1",
                   shards, align_numel, shard_multiple));
}

void check_rank(std::int64_t shard_rank, std::int64_t shards) {
  if (shard_rank < 0 || shard_rank >= shards)
    fail(Code::kOutOfRange, fmt::format("shard {} of {}", shard_rank, shards));
}

}  // namespace

FlatLayout::FlatLayout(const std::vector<FlatParameter>& parameters, std::int64_t shards,
                       std::int64_t align_numel, std::int64_t shard_multiple)
    : shards_(shards) {
  check_numbers(shards, align_numel, shard_multiple);
  for (const FlatParameter& parameter : parameters)
    append(parameter, round_up(unpadded_numel_, align_numel));
  cut(shard_multiple);
}

FlatLayout FlatLayout::with_padding(const std::vector<FlatParameter>& parameters,
                                    const std::vector<std::int64_t>& behind, std::int64_t shards,
                                    std::int64_t shard_multiple) {
  FlatLayout out({}, shards, 1, shard_multiple);
  if (behind.size() != parameters.size())
    fail(Code::kCorrupt, fmt::format("{} numbers of padding elements for {} parameters",
                                     behind.size(), parameters.size()));
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    if (behind[p] < 0)
      fail(Code::kCorrupt, fmt::format("{} elements of padding behind a parameter", behind[p]));
    out.append(parameters[p], out.unpadded_numel_);
    out.unpadded_numel_ = sum(out.unpadded_numel_, behind[p]);
  }
  out.cut(shard_multiple);
  return out;
}

void FlatLayout::append(const FlatParameter& parameter, std::int64_t begin) {
  const std::int64_t numel = parameter.shape.numel();
  unpadded_numel_ = sum(begin, numel);
  segments_.push_back({parameter.fqn, parameter.shape, begin, numel});
}

void FlatLayout::cut(std::int64_t shard_multiple) {
  const auto multiple = checked_mul(shards_, shard_multiple);
  if (!multiple) fail(Code::kInvalidArgument, "shards x multiple is above 2^63 - 1");
  shard_numel_ = round_up(unpadded_numel_, *multiple) / shards_;
}

std::int64_t FlatLayout::tail_padded(std::int64_t shard_rank) const {
  check_rank(shard_rank, shards_);
  const std::int64_t begin = shard_rank * shard_numel_;
  return begin + shard_numel_ - std::clamp(unpadded_numel_, begin, begin + shard_numel_);
}

std::int64_t FlatLayout::num_padded(std::int64_t shard_rank) const {
  std::int64_t padded = shard_numel_;
  for (const FlatPiece& piece : pieces_of(shard_rank)) padded -= piece.numel();
  return padded;
}

std::vector<FlatPiece> FlatLayout::pieces_of(std::int64_t shard_rank) const {
  check_rank(shard_rank, shards_);
  return pieces_in(shard_rank * shard_numel_, (shard_rank + 1) * shard_numel_);
}

std::vector<FlatPiece> FlatLayout::pieces_in(std::int64_t begin, std::int64_t end) const {
  auto segment = std::partition_point(segments_.begin(), segments_.end(),
                                      [begin](const FlatSegment& s) { return s.end() <= begin; });
  std::vector<FlatPiece> pieces;
  for (; segment != segments_.end() && segment->begin < end; ++segment) {
    const std::int64_t from = std::max(begin, segment->begin);
    const std::int64_t to = std::min(end, segment->end());
    if (from >= to) continue;  // a parameter without elements
    pieces.push_back({static_cast<std::size_t>(segment - segments_.begin()), from - segment->begin,
                      to - segment->begin, from - begin});
  }
  return pieces;
}

}  // namespace tessera
