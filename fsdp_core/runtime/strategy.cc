#include "fsdp_core/runtime/strategy.h"

#include <tessera/base/error.h>

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

std::string_view strategy_name(ShardingStrategy strategy) { return strategy_of(strategy).name; }

}  // namespace tessera::fsdp
