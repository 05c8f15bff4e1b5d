#include "lib/format/deepspeed_zero/partition.h"

#include <tessera/base/checked.h>
#include <tessera/base/error.h>

#include <algorithm>

namespace tessera::deepspeed {
namespace {

std::int64_t plus(std::int64_t a, std::int64_t b) {
  const auto sum = checked_add(a, b);
  if (a < 0 || b < 0 || !sum) fail(Code::kCorrupt, "a group has more elements than can be counted");
  return *sum;
}

/// total rounded up to a multiple, divided by world_size.
std::int64_t part_of(std::int64_t total, std::int64_t world_size) {
  const auto multiple = checked_mul(std::int64_t{2}, world_size);
  if (!multiple) fail(Code::kCorrupt, "the world size is too large");
  const auto aligned = checked_mul(ceil_div(total, *multiple), *multiple);
  if (!aligned) fail(Code::kCorrupt, "a group has more elements than can be counted");
  return *aligned / world_size;
}

}  // namespace

FlatGroup::FlatGroup(const std::vector<std::int64_t>& numels,
                     const std::vector<std::int64_t>& alignment_paddings, std::int64_t world_size)
    : numels_(numels) {
  TESSERA_CHECK(world_size >= 1);
  TESSERA_CHECK(alignment_paddings.empty() || alignment_paddings.size() == numels.size());
  for (std::size_t i = 0; i < numels.size(); ++i) {
    begins_.push_back(unpadded_numel_);
    unpadded_numel_ = plus(unpadded_numel_, numels[i]);
    if (!alignment_paddings.empty()) unpadded_numel_ = plus(unpadded_numel_, alignment_paddings[i]);
  }
  part_numel_ = part_of(unpadded_numel_, world_size);
}

std::int64_t FlatGroup::padding(std::int64_t rank) const {
  const std::int64_t left = unpadded_numel_ - rank * part_numel_;
  return part_numel_ - std::clamp<std::int64_t>(left, 0, part_numel_);
}

std::vector<Fragment> FlatGroup::fragments(std::int64_t begin, std::int64_t length) const {
  std::vector<Fragment> out;
  const std::int64_t end = plus(begin, length);
  // The first parameter that may reach into the range.
  auto at = std::ranges::upper_bound(begins_, begin);
  auto first = static_cast<std::size_t>(at - begins_.begin());
  if (first > 0) --first;
  for (std::size_t i = first; i < begins_.size() && begins_[i] < end; ++i) {
    const std::int64_t from = std::max(begin, begins_[i]);
    const std::int64_t to = std::min(end, begins_[i] + numels_[i]);
    if (from < to) out.push_back({i, from - begins_[i], to - begins_[i], from - begin});
  }
  return out;
}

Slice slice_of(std::int64_t numel, std::int64_t world_size, std::int64_t rank) {
  TESSERA_CHECK(numel >= 0 && world_size >= 1 && rank >= 0 && rank < world_size);
  const std::int64_t room = ceil_div(numel, world_size);
  // rank * room may pass the end, but not int64: it is below numel + world_size.
  const std::int64_t begin = std::min(rank * room, numel);
  return {begin, std::min(begin + room, numel), room};
}

std::vector<std::size_t> sub_groups(const std::vector<std::int64_t>& rooms,
                                    std::int64_t sub_group_numel) {
  std::int64_t total = 0;
  for (const std::int64_t room : rooms) total = plus(total, room);
  if (rooms.empty()) return {};
  if (sub_group_numel >= total) return {rooms.size()};
  std::vector<std::size_t> sizes;
  std::size_t size = 0;
  std::int64_t filled = 0;
  for (std::size_t i = 0; i < rooms.size(); ++i) {
    ++size;
    filled += rooms[i];
    if (filled < sub_group_numel && i + 1 < rooms.size()) continue;
    sizes.push_back(size);
    size = 0;
    filled = 0;
  }
  return sizes;
}

std::vector<std::size_t> round_robin_order(std::size_t count, std::int64_t world_size) {
  TESSERA_CHECK(world_size >= 1);
  std::vector<std::size_t> order;
  const auto bins = static_cast<std::size_t>(
      std::min<std::uint64_t>(static_cast<std::uint64_t>(world_size), count));
  for (std::size_t bin = 0; bin < bins; ++bin)
    for (std::size_t i = bin; i < count; i += static_cast<std::size_t>(world_size))
      order.push_back(i);
  return order;
}

}  // namespace tessera::deepspeed
