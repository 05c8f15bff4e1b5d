#pragma once
// State whose names its reader derived from order alone.
#include <tessera/state/manifest.h>

#include <string>

namespace tessera {

/// Throws kUnsupported for an optimizer's state in `manifest` that a note (Finding::kUnsureOptimizer) speaks
/// of: it may be shown, but neither written nor loaded under names that may be wrong.
void require_sure_names(const Manifest& manifest, const std::string& hint);

}  // namespace tessera
