#pragma once
// Strategy: what a ShardingStrategy means, as data. strategy_of() is the one place that knows the
// enum's values; everything else asks for a property. To add a strategy: an enumerator in
// tessera/fsdp/options.h, a row here and in strategy.cc. Tests list the strategies by name (tests/fsdp,
// tests/gpu_kit): add it to each list.
//
// clang-format off
//                        shards   frees after forward   replicates   mesh dim of shards / of replicas
//   FULL_SHARD           yes      yes                   -            0 / -
//   SHARD_GRAD_OP        yes      -                     -            0 / -
//   NO_SHARD             -        -                     yes          - / 0
//   HYBRID_SHARD         yes      yes                   yes          1 / 0
//   HYBRID_SHARD_ZERO2   yes      -                     yes          1 / 0
// clang-format on
#include <tessera/fsdp/options.h>

#include <optional>
#include <string_view>

namespace tessera::fsdp {

struct Strategy {
  std::string_view name;     // PyTorch's
  bool shards_params;        // cut over ranks: parameters between their uses, gradients, optimizer
                             // state
  bool frees_after_forward;  // parameters are gathered again for backward
  bool replicates;           // gradients are all-reduced over replicas
  std::optional<int> shard_dim, replicate_dim;  // of options.mesh

  /// Cut within a group of ranks, replicated over several such groups.
  constexpr bool hybrid() const { return shards_params && replicates; }
};

inline constexpr std::size_t kStrategyCount =
    static_cast<std::size_t>(ShardingStrategy::kHybridShardZero2) + 1;

const Strategy& strategy_of(ShardingStrategy strategy);
/// What `strategy` is for parameters over a mesh of their own: of 1 dim it shards, of 2 it is hybrid; they
/// are freed when `strategy` says so. Precondition: it shards.
ShardingStrategy strategy_over(ShardingStrategy strategy, int mesh_dims);

}  // namespace tessera::fsdp
