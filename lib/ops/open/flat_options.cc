#include "lib/ops/open/flat_options.h"

#include <tessera/state/roles.h>

#include <set>
#include <vector>

namespace tessera {

void locate_flattened_options(OpenedCheckpoint& checkpoint, const ReadOptions& options) {
  const Roles roles = find_roles(checkpoint.manifest.state);
  std::set<std::uint32_t> tensors;
  for (std::size_t i = 0; i < roles.entries.size(); ++i)
    if (const EntryRole& role = roles.entries[i];
        role.role == Role::kOptimGroup && role.group < 0 && !role.fqn.empty())
      for_each_tensor(checkpoint.manifest.state.entries[i].value,
                      [&](std::uint32_t t) { tensors.insert(t); });
  if (!tensors.empty())
    checkpoint.locate(std::vector<std::uint32_t>(tensors.begin(), tensors.end()), options);
}

}  // namespace tessera
