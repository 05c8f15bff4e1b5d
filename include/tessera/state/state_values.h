#pragma once
// Optimizer state that is stored as one value per parameter, with tensors inside
// (`optim.state.<fqn>` = {"exp_avg": tensor, "step": 2.0}: FairScale without flattening, where the
// framework itself has no names for these tensors). Listing leaves it as it is; code that works on
// an optimizer, or writes it to another format, expands it first.
#include <tessera/state/manifest.h>
#include <tessera/state/roles.h>

namespace tessera {

/// Turns such values into leaves `<root>.state.<fqn>.<leaf>`, by the rule of flatten(). Tensors
/// that several values hold stay where they are. Throws kCorrupt for a value that expands without
/// end.
void expand_state_values(Manifest& manifest);

}  // namespace tessera
