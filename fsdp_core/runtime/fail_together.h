#pragma once
// Calls that all ranks make together and in which one may fail, or answer, apart: in a function of
// the user's, say, where nobody waits for it.
#include <tessera/fsdp/communicator.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fsdp_core/runtime/unit.h"

namespace tessera::fsdp {

struct TogetherCall {
  std::string name;  // "fully_shard"
  CommTag tag;
  std::string hint;  // for the ranks that did not fail themselves
};

/// Those over which a unit's ranks find each other: shards, replicas, parts; none of one rank.
std::vector<Communicator*> communicators_of(const UnitGroups& groups);
/// Of all these units, once each.
std::vector<Communicator*> communicators_of(
    const std::vector<std::shared_ptr<detail::Unit>>& units);

/// Runs `body`. What it throws on one rank of these groups, it throws there, and every other rank
/// then throws too, naming that rank. Collective over all of them.
void fail_together(const std::vector<Communicator*>& groups, const TogetherCall& call,
                   const std::function<void()>& body);

/// Throws kInvalidArgument where another rank of these groups has other lines: with both lines and
/// ranks. Collective over all of them; where not every rank need see the difference itself, the
/// others are to be told. `what`: "parameters".
void check_alike(const std::vector<Communicator*>& groups, const CommTag& tag,
                 const std::string& what, const std::string& lines, const std::string& hint);

}  // namespace tessera::fsdp
