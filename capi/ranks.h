#pragma once
#include <tessera/base/rank_group.h>
#include <tessera/c.h>

#include <memory>

struct tessera_ranks {
  std::unique_ptr<tessera::RankGroup> group;
};

namespace tessera::capi {

/// Throws kInvalidArgument for calls that are no group.
std::unique_ptr<RankGroup> make_ranks(const tessera_rank_calls& calls);

}  // namespace tessera::capi
