#pragma once
// Entries that leave a state without being left out: their values live on under other names, or say
// what the state is to have no longer. keep_entries (roles.h) is for what is dropped, and books it.
#include <tessera/state/value.h>

#include <vector>

namespace tessera {

/// Removes the entries for which taken[i] is true (entries behind its end stay). Containers keep their
/// places among the others; tensors stay where they are.
void take_out(StateDict& state, const std::vector<bool>& taken);

}  // namespace tessera
