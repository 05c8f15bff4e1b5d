#pragma once
// A flat parameter is many weights end to end in one row of numbers, as FSDP's local state dicts
// keep them. Whoever exports a model wants the weights.
#include <tessera/state/manifest.h>

namespace tessera {

/// Throws kUnsupported naming the first model tensor that is a flat parameter (`_flat_param`,
/// `flat_param`, `flat_param_3`, of one dim): its weights' names and shapes are not in the
/// checkpoint.
void refuse_flat_parameters(const Manifest& manifest);

}  // namespace tessera
