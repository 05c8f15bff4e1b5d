#pragma once
// Which parameters are alike, by their names. Pure.
#include <string>
#include <string_view>

namespace tessera {

/// "layers.3.mlp.up.weight" -> "layers.3"; without numbers the module that the parameter is of.
std::string layer_of(std::string_view fqn);
/// "layers.3.mlp.up.weight" -> "layers.#.mlp.up.weight"
std::string kind_of(std::string_view fqn);

}  // namespace tessera
