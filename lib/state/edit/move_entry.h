#pragma once
#include <tessera/state/manifest.h>

namespace tessera {

/// Moves an entry, and the names of its tensors with it.
void move_entry(Manifest& manifest, StateEntry& entry, Path path);

}  // namespace tessera
