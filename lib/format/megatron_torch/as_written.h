#pragma once
// What this format writes otherwise than its source has it: the model under its own key, and in
// `args` the sizes of a job with the result's ranks.
#include <tessera/state/manifest.h>

namespace tessera::megatron_torch {

/// Gives `source` the names and arguments of `written`, so that --verify compares all the rest.
void restate_as_written(Manifest& source, const StateDict& written);

}  // namespace tessera::megatron_torch
