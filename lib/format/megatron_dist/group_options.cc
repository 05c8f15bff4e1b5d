#include "lib/format/megatron_dist/group_options.h"

#include <tessera/state/roles.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/state/sharded_object.h"

namespace tessera::megatron_dist {
namespace {

/// "optimizer" of "optimizer.distributed.dp_group_idx_3.optimizer/shard_0_1"; nullopt: another name.
std::optional<std::string_view> option_name(std::string_view name) {
  constexpr std::string_view kSpace = "optimizer.distributed.dp_group_idx_";
  const auto object = parse_sharded_object(name);
  if (!object || object->places() != 1 || !object->key.starts_with(kSpace)) return std::nullopt;
  const std::string_view rest = object->key.substr(kSpace.size());
  const std::size_t dot = rest.find('.');
  if (dot == 0 || dot == rest.npos) return std::nullopt;
  return rest.substr(dot + 1);
}

/// A size of the buckets themselves, which are no longer there.
bool describes_buckets(std::string_view option) { return option.starts_with("per_bucket_numel"); }

}  // namespace

ValueDict take_group_options(Manifest& manifest) {
  ValueDict options;
  const std::vector<StateEntry>& entries = manifest.state.entries;
  std::vector<bool> keep(entries.size(), true);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const Value& value = entries[i].value;
    const auto option = option_name(entries[i].name);
    if (!option || value.is_tensor()) continue;
    keep[i] = false;
    if (describes_buckets(*option)) continue;
    const bool boxed = value.kind() == Value::Kind::kList && value.as_list().size() == 1;
    if (!boxed || value.holds_tensors()) return {};
    const Value& own = value.as_list()[0];
    const auto known = std::ranges::find_if(
        options, [&](const auto& item) { return item.first.as_string() == *option; });
    if (known == options.end())
      options.emplace_back(Value::string(std::string(*option)), own);
    else if (!(known->second == own))
      return {};
  }
  if (!options.empty()) keep_entries(manifest, keep);
  return options;
}

}  // namespace tessera::megatron_dist
