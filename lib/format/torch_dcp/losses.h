#pragma once
// What a state dict loses in torch-dcp, which keeps leaves under text keys and nothing else.
#include <tessera/state/manifest.h>

#include <vector>

namespace tessera::dcp {

/// One note for containers that will be plain or absent, one for keys that become text (but those
/// of an optimizer keyed by id, which are integers again on the way back), one for a list at the
/// top.
void note_losses(const StateDict& state, std::vector<Note>& notes);

}  // namespace tessera::dcp
