#pragma once
// What is listed of a checkpoint as its tensors: leaves, and the parts of tensors that are made of
// several, "weight#codes" and "weight#scale" (docs/formats/torch-save.md).
#include <tessera/state/manifest.h>

#include <cstdint>
#include <vector>

namespace tessera {

/// Indices of leaves and of such parts, in the order of Manifest::tensors. Other tensors inside of
/// values are none of them. Of an opened checkpoint: parts have their names from opening.
std::vector<std::uint32_t> listed_tensors(const Manifest& manifest);

}  // namespace tessera
