#pragma once
// A RankGroup over a Communicator: what save and load need, through the runtime's own connections.
#include <tessera/base/rank_group.h>
#include <tessera/fsdp/communicator.h>

#include <functional>
#include <memory>

namespace tessera::fsdp {

/// `current` gives the communicator to use now (another one after World::reset); `another` makes
/// what RankGroup::duplicate returns (null: it throws); `usable` answers RankGroup::usable (null:
/// always true).
std::unique_ptr<RankGroup> communicator_rank_group(
    int rank, int size, std::function<std::shared_ptr<Communicator>()> current,
    std::function<std::unique_ptr<RankGroup>()> another, std::function<bool()> usable);

}  // namespace tessera::fsdp
