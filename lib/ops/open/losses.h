#pragma once
// What a damaged checkpoint has lost, by its metadata and the sizes of its files alone.
#include <tessera/state/manifest.h>

#include <set>
#include <string>
#include <vector>

namespace tessera {

/// CK024 for every tensor of which elements are in no file: in one that is missing or ends early,
/// with no other copy of them, or in no chunk at all. Tensors in `damaged` have their holes said
/// already. Pure.
std::vector<Note> find_losses(const Manifest& manifest, const std::set<std::string>& damaged);

}  // namespace tessera
