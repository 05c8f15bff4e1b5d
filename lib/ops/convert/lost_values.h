#pragma once
// What a preset would leave out although it was asked for: objects that hold weights, and values
// where the user wants an error for them.
#include <tessera/format/format_driver.h>
#include <tessera/state/manifest.h>
#include <tessera/state/roles.h>

namespace tessera {

/// Checks what --to hf leaves out. Throws kUnsupported for weights that are objects around tensors,
/// or dicts of them kept as one value, unless --opaque or --values says that they may go; and for
/// any value, object or part of a state under --values error or --opaque error, which hold for
/// everything that no other flag leaves out. `dequantizes`: objects around tensors are to become
/// plain weights, or to be refused, later on.
void refuse_lost_values(const Manifest& manifest, const Roles& roles, const TargetRequest& request,
                        bool dequantizes = false);

}  // namespace tessera
