#include "fsdp_core/runtime/strategy.h"

#include <tessera/base/error.h>

#include <algorithm>
#include <array>

namespace tessera::fsdp {
namespace {

constexpr std::array<Strategy, kStrategyCount> kStrategies = {{
    {"FULL_SHARD", true, true, false, 0, std::nullopt},
    {"SHARD_GRAD_OP", true, false, false, 0, std::nullopt},
    {"NO_SHARD", false, false, true, std::nullopt, 0},
    {"HYBRID_SHARD", true, true, true, 1, 0},
    {"HYBRID_SHARD_ZERO2", true, false, true, 1, 0},
}};

}  // namespace

const Strategy& strategy_of(ShardingStrategy strategy) {
  const auto index = static_cast<std::size_t>(strategy);
  TESSERA_CHECK(index < kStrategies.size());
  return kStrategies[index];
}

ShardingStrategy strategy_over(ShardingStrategy strategy, int mesh_dims) {
  const Strategy& like = strategy_of(strategy);
  TESSERA_CHECK(like.shards_params);
  const auto same = std::ranges::find_if(kStrategies, [&](const Strategy& each) {
    return each.shards_params && each.hybrid() == (mesh_dims == 2) &&
           each.frees_after_forward == like.frees_after_forward;
  });
  return static_cast<ShardingStrategy>(same - kStrategies.begin());
}

std::string_view strategy_name(ShardingStrategy strategy) { return strategy_of(strategy).name; }

}  // namespace tessera::fsdp
