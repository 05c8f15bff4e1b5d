#pragma once
// Names of files that lie beside a model and are no part of its state: configuration, tokenizer,
// chat template. Pure.
#include <string_view>

namespace tessera {

/// "config.json", "tokenizer.model": read beside the weights, and no weights.
bool is_asset_name(std::string_view name);

/// Weights and their indices are never assets, whatever they are called.
bool is_weights_name(std::string_view name);

}  // namespace tessera
