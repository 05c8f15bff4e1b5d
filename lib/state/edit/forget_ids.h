#pragma once
// Parameters that leave a checkpoint whose optimizers know them by integer ids: their state leaves
// with them, and the groups list them no more. Ids that stay keep their numbers: torch.optim goes
// by their order.
#include <tessera/state/manifest.h>
#include <tessera/state/roles.h>

#include <set>
#include <string>
#include <vector>

namespace tessera {

/// Takes the ids of `gone` (FQNs) out of the groups and clears keep[i] of their state entries.
/// Throws kUnsupported naming a parameter where order and shapes leave open which ids those are and
/// the optimizer's state is kept.
void forget_ids(Manifest& manifest, const Roles& roles, const std::set<std::string>& gone,
                std::vector<bool>& keep);

}  // namespace tessera
