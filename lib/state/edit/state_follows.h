#pragma once
// Optimizer state before its parameters are cut: what can be cut with them, and what cannot.
#include <tessera/state/parameter_edit.h>

namespace tessera {

/// True where the edit gives one parameter another name and leaves its elements as they are.
bool takes_all(const ParameterEdit& edit);

/// Refuses state that cannot follow the edits (kUnsupported), or, with OptimPolicy::kDrop, leaves
/// out all state of such parameters; their places in the groups stay.
std::vector<Note> settle_state(Manifest& manifest, std::span<const ParameterEdit> edits,
                               OptimPolicy policy);

}  // namespace tessera
