#include "lib/ops/convert/flat_guard.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/state/roles.h>

#include <string_view>

namespace tessera {
namespace {

/// "_flat_param", "flat_param", "flat_param_3".
bool is_flat_name(std::string_view item) {
  if (item.starts_with('_')) item.remove_prefix(1);
  if (!item.starts_with("flat_param")) return false;
  item.remove_prefix(std::string_view("flat_param").size());
  return item.empty() || (item[0] == '_' && is_decimal(item.substr(1)));
}

bool names_flat_parameter(std::string_view fqn) {
  for (const std::string_view item : split(fqn, '.'))
    if (is_flat_name(item)) return true;
  return false;
}

}  // namespace

void refuse_flat_parameters(const Manifest& manifest) {
  const Roles roles = find_roles(manifest.state);
  for (std::size_t i = 0; i < roles.entries.size(); ++i) {
    const StateEntry& entry = manifest.state.entries[i];
    if (roles.entries[i].role != Role::kModel || !entry.value.is_tensor()) continue;
    const Shape& shape = manifest.tensors[entry.value.tensor_index()].spec.shape;
    if (shape.rank() != 1 || !names_flat_parameter(roles.entries[i].fqn)) continue;
    fail(Code::kUnsupported,
         fmt::format("\"{}\" of shape {} is a flat parameter of a local FSDP state dict{}: it was "
                     "flattened, and the names and shapes of its weights are not in the checkpoint",
                     printable(entry.name), shape.to_string(),
                     manifest.world_size ? fmt::format(", saved with W={}", *manifest.world_size)
                                         : std::string()),
         "save a full or sharded state dict, or give the layout with --flat-layout FILE");
  }
}

}  // namespace tessera
