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

}  // namespace

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
