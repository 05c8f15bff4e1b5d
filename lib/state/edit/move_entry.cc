#include "lib/state/edit/move_entry.h"

#include <utility>

namespace tessera {

void move_entry(Manifest& manifest, StateEntry& entry, Path path) {
  entry.path = std::move(path);
  entry.name = dotted(entry.path);
  for_each_tensor(entry.value, [&](std::uint32_t t) { manifest.tensors[t].name = entry.name; });
}

}  // namespace tessera
