#include "lib/ops/open/unsure_names.h"

#include <tessera/base/error.h>
#include <tessera/format/torch_rank_files.h>
#include <tessera/state/roles.h>

#include <algorithm>

namespace tessera {

void require_sure_names(const Manifest& manifest, const std::string& hint) {
  const bool noted = std::ranges::any_of(
      manifest.notes, [](const Note& note) { return note.code == Finding::kUnsureOptimizer; });
  if (!noted) return;
  const Roles roles = find_roles(manifest.state);
  for (const Note& note : manifest.notes) {
    if (note.code != Finding::kUnsureOptimizer) continue;
    for (const EntryRole& role : roles.entries) {
      if (role.role != Role::kOptimState || role.root < 0) continue;
      const std::string& root = roles.optimizers[static_cast<std::size_t>(role.root)].name;
      if (root.empty() || note.tensor == root || note.tensor.ends_with("." + root))
        fail(Code::kUnsupported, note.message, hint);
    }
  }
}

}  // namespace tessera
