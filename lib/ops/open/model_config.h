#pragma once
// The model's config.json beside a checkpoint.
#include <tessera/storage/file_system.h>

#include "lib/state/quant_weights.h"

namespace tessera {

/// None where there is no such file. Throws kCorrupt where it is no JSON.
Value read_config(const Directory& directory);

/// What it says of quantization; nothing where it cannot be read.
QuantFacts quant_facts_beside(const Directory& directory);

}  // namespace tessera
