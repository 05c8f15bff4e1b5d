#include "lib/format/fairscale_fsdp/shards.h"

#include <fmt/format.h>
#include <tessera/base/checked.h>

#include <algorithm>
#include <functional>
#include <optional>

namespace tessera::fairscale {
namespace {

using Shards = std::span<const StoredShard>;

std::int64_t real_numel(const StoredShard& shard) { return shard.numel - shard.padding; }

/// Elements that member `index` of a group of `group` ranks with shards of `chunk` holds.
/// `index * chunk` may not overflow: chunk <= numel + 1 and index < group keep it in range.
std::int64_t expected_numel(std::int64_t numel, std::int64_t chunk, std::size_t index) {
  const auto begin = checked_mul(static_cast<std::int64_t>(index), chunk);
  if (!begin || *begin >= numel) return 0;
  return std::min(chunk, numel - *begin);
}

/// What does not fit together before anything is laid out.
std::string odd_shard(std::int64_t numel, Shards shards) {
  std::optional<std::size_t> first;
  for (std::size_t r = 0; r < shards.size(); ++r) {
    if (!shards[r].present) continue;
    if (shards[r].padding > shards[r].numel)
      return fmt::format("rank {} states {} padding elements in a shard of {}", r,
                         shards[r].padding, shards[r].numel);
    if (!first) first = r;
    if (shards[r].numel != shards[*first].numel)
      return fmt::format(
          "rank {} holds a shard of {} elements, rank {} one of {}: the files are "
          "of saves with different world sizes ({} elements in all)",
          *first, shards[*first].numel, r, shards[r].numel, numel);
  }
  return first ? "" : "no rank holds a shard of it";
}

/// A way to number the members of process groups of `group` ranks.
using Member =
    std::function<std::pair<std::size_t, std::size_t>(std::size_t rank)>;  // group, index

bool fits(std::int64_t numel, std::int64_t chunk, Shards shards, const Member& member) {
  for (std::size_t r = 0; r < shards.size(); ++r)
    if (shards[r].present &&
        real_numel(shards[r]) != expected_numel(numel, chunk, member(r).second))
      return false;
  return true;
}

ShardPlan lay_out(std::int64_t numel, std::int64_t chunk, Shards shards, const Member& member) {
  ShardPlan plan;
  std::vector<FlatRun> runs;
  for (std::size_t r = 0; r < shards.size(); ++r) {
    const auto [group, index] = member(r);
    if (group != 0) {
      if (shards[r].present) plan.outside.push_back(r);
      continue;
    }
    const std::int64_t length = expected_numel(numel, chunk, index);
    const std::int64_t begin = length == 0 ? numel : static_cast<std::int64_t>(index) * chunk;
    if (shards[r].present)
      runs.push_back({r, 0, begin, begin + length, 0});
    else if (length > 0)
      plan.missing.push_back(r);
  }
  plan.places = FlatPlaces(std::move(runs));
  if (!plan.missing.empty()) plan.problem = "ranks are missing";
  return plan;
}

ShardPlan one_rank(std::int64_t numel, Shards shards, std::size_t rank) {
  ShardPlan plan;
  plan.whole = true;
  plan.places = FlatPlaces({{rank, 0, 0, numel, 0}});
  for (std::size_t r = 0; r < shards.size(); ++r)
    if (r != rank && shards[r].present) plan.outside.push_back(r);
  return plan;
}

std::optional<ShardPlan> smaller_groups(std::int64_t numel, std::int64_t chunk, Shards shards) {
  const auto world = shards.size();
  for (std::size_t group = 2; group < world; ++group) {
    if (world % group != 0 || ceil_div(numel, static_cast<std::int64_t>(group)) != chunk) continue;
    const Member blocks = [group](std::size_t r) { return std::pair(r / group, r % group); };
    const std::size_t stride = world / group;
    const Member strided = [stride](std::size_t r) { return std::pair(r % stride, r / stride); };
    const bool by_block = fits(numel, chunk, shards, blocks);
    const bool by_stride = fits(numel, chunk, shards, strided);
    if (!by_block && !by_stride) continue;
    ShardPlan plan = lay_out(numel, chunk, shards, by_block ? blocks : strided);
    plan.guessed_group = by_block && by_stride;
    return plan;
  }
  return std::nullopt;
}

/// The files say nothing consistent: why, and what can still be read of them.
ShardPlan broken(std::int64_t numel, std::int64_t chunk, Shards shards) {
  const auto world = static_cast<std::int64_t>(shards.size());
  ShardPlan plan = lay_out(numel, chunk, shards, [](std::size_t r) { return std::pair(0u, r); });
  std::int64_t stored = 0;
  for (const StoredShard& shard : shards)
    if (shard.present) stored += real_numel(shard);
  const std::int64_t needed = chunk == 0 ? world : ceil_div(numel, chunk);
  if (needed > world) {
    for (std::int64_t r = world; r < needed && r - world < 1024; ++r)
      plan.missing.push_back(static_cast<std::size_t>(r));
    plan.problem = fmt::format(
        "{} elements in shards of {} take at least {} ranks; files of {} are "
        "here",
        numel, chunk, needed, world);
  } else {
    plan.problem = fmt::format(
        "{} shards of {} elements without their padding are {} elements; the "
        "metadata lists {}",
        world, chunk, stored, numel);
  }
  return plan;
}

}  // namespace

ShardPlan arrange_shards(std::int64_t numel, Shards shards, bool no_broadcast) {
  ShardPlan plan;
  plan.problem = odd_shard(numel, shards);
  if (!plan.problem.empty()) return plan;
  const auto world = shards.size();
  std::size_t first = 0;
  while (!shards[first].present) ++first;
  const bool holds_all = real_numel(shards[first]) == numel && shards[first].padding == 0;
  if (no_broadcast && holds_all) return one_rank(numel, shards, first);
  const std::int64_t chunk = shards[first].numel;
  const Member together = [](std::size_t r) { return std::pair(std::size_t{0}, r); };
  if (chunk == ceil_div(numel, static_cast<std::int64_t>(world)) &&
      fits(numel, chunk, shards, together)) {
    plan = lay_out(numel, chunk, shards, together);
    plan.whole = world == 1;
    return plan;
  }
  if (holds_all) return one_rank(numel, shards, first);
  if (auto found = smaller_groups(numel, chunk, shards)) return *found;
  return broken(numel, chunk, shards);
}

}  // namespace tessera::fairscale
