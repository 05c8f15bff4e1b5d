#pragma once
// config.json's quantization_config, by which loaders know how the weights of a result are quantized.
#include <tessera/state/block_scheme.h>

#include <string>
#include <vector>

namespace tessera {

/// JSON in one line. `stacked`: as GPT-OSS has its experts. `kept`: weights that stay as they are;
/// loaders would take their modules for quantized ones.
std::string quantization_config(BlockScheme scheme, bool stacked,
                                const std::vector<std::string>& kept);

}  // namespace tessera
