#pragma once
// Whether a state has its weights in the model's own order, by which the integer ids of an optimizer
// are named.
#include <tessera/state/manifest.h>

#include <string>
#include <string_view>

namespace tessera {

inline constexpr std::string_view kParameterOrder = "parameter_order";  // in provenance

/// Records that the weights stand in the order of their names: what wrote them sorted them.
inline void set_order_of_names(Manifest& manifest) {
  manifest.provenance[std::string(kParameterOrder)] = "by name";
}
inline bool in_model_order(const Manifest& manifest) {
  return !manifest.provenance.contains(std::string(kParameterOrder));
}

}  // namespace tessera
