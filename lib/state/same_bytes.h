#pragma once
// Whether two tensors of a manifest are read from the same bytes: what is known without reading
// any. Tied weights, copies of a step that ranks share, masters that are the weights. Pure.
#include <tessera/state/manifest.h>

#include <cstdint>

namespace tessera {

/// The same stored elements in the same places, whatever dtype they become.
bool same_stored(const Manifest& manifest, std::uint32_t a, std::uint32_t b);
/// ... and the same tensor.
bool same_bytes(const Manifest& manifest, std::uint32_t a, std::uint32_t b);

}  // namespace tessera
