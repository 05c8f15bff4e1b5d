#pragma once
// A RankGroup over a Communicator: what save and load need, through the runtime's own connections.
#include <tessera/base/rank_group.h>
#include <tessera/fsdp/communicator.h>

#include <functional>
#include <memory>

namespace tessera::fsdp {

/// `current` gives the communicator to use now (another one after World::reset); `another` makes
/// one beside it, for RankGroup::duplicate (null: there is none).
std::unique_ptr<RankGroup> communicator_rank_group(
    int rank, int size, std::function<std::shared_ptr<Communicator>()> current,
    std::function<std::shared_ptr<Communicator>()> another);

}  // namespace tessera::fsdp
