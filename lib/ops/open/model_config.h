#pragma once
// The model's config.json beside a checkpoint.
#include <tessera/storage/file_system.h>

#include "lib/state/quant_weights.h"

namespace tessera {

/// None where there is no such file. Throws kCorrupt where it is no JSON.
Value read_config(const Directory& directory);

/// Whether it says that the output layer is no copy of the embedding (tie_word_embeddings: false).
bool says_untied(const Directory& directory);

/// What it says of quantization; nothing where it cannot be read.
QuantFacts quant_facts_beside(const Directory& directory);

}  // namespace tessera
