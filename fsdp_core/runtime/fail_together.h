#pragma once
// Calls that all ranks make together and in which one may fail apart: in a function of the user's,
// say, where nobody waits for it.
#include <tessera/fsdp/communicator.h>

#include <functional>
#include <string>

#include "fsdp_core/setup/unit_groups.h"

namespace tessera::fsdp {

struct TogetherCall {
  std::string name;  // "fully_shard"
  CommTag tag;
  std::string hint;  // for the ranks that did not fail themselves
};

/// Runs `body`. What it throws on one rank of these groups, it throws there, and every other rank
/// then throws too, naming that rank. Collective over all of them.
void fail_together(UnitGroups& groups, const TogetherCall& call, const std::function<void()>& body);

}  // namespace tessera::fsdp
