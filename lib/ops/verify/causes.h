#pragma once
// Findings grouped by what caused them.
#include <tessera/ops/verify.h>
#include <tessera/state/manifest.h>

#include <vector>

namespace tessera {

/// What a missing, short or unreadable file took along is one cause, with the bytes that it is
/// short of where metadata place something behind its end; so are findings that say the same of one
/// file. Pure.
std::vector<DamageCause> find_causes(const std::vector<Note>& findings, const Manifest& manifest);

}  // namespace tessera
