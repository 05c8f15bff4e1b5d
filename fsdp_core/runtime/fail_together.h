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

/// The communicators that connect a unit's ranks: of its shards, replicas and parts. Those of one
/// rank are left out.
std::vector<Communicator*> communicators_of(const UnitGroups& groups);
/// The communicators of all these units, each once.
std::vector<Communicator*> communicators_of(
    const std::vector<std::shared_ptr<detail::Unit>>& units);

/// Runs `body`. What it throws on one rank of these groups, it throws there, and every other rank
/// then throws too, naming that rank. Collective over all of them.
void fail_together(const std::vector<Communicator*>& groups, const TogetherCall& call,
                   const std::function<void()>& body);

/// Throws kInvalidArgument where another rank of these groups has other lines: with both lines and
/// ranks. Collective over all of them; where not every rank may see the difference itself, the
/// caller reports it to the others. `what` names the subject: "parameters".
void check_alike(const std::vector<Communicator*>& groups, const CommTag& tag,
                 const std::string& what, const std::string& lines, const std::string& hint);

}  // namespace tessera::fsdp
