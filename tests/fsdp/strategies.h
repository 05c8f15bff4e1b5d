#pragma once
// The sharding strategies, for tests that run each of them: a new one is tested where these are.
#include <vector>

#include "fsdp_core/runtime/strategy.h"

namespace tessera::fsdp::test {

inline std::vector<ShardingStrategy> all_strategies() {
  std::vector<ShardingStrategy> out;
  for (std::size_t i = 0; i < kStrategyCount; ++i) out.push_back(static_cast<ShardingStrategy>(i));
  return out;
}

inline std::vector<ShardingStrategy> strategies_where(bool hybrid) {
  std::vector<ShardingStrategy> out = all_strategies();
  std::erase_if(out, [&](ShardingStrategy each) { return strategy_of(each).hybrid() != hybrid; });
  return out;
}

/// Sharded within a group of ranks, replicated over several such groups.
inline std::vector<ShardingStrategy> hybrid_strategies() { return strategies_where(true); }

}  // namespace tessera::fsdp::test
