#include "lib/ops/edit/alias_entries.h"

#include <tessera/state/roles.h>

#include <algorithm>
#include <set>
#include <string>

namespace tessera {
namespace {

/// The items of `path` that spell `root`.
Path items_of(const Path& path, const std::string& root) {
  Path items;
  std::string text;
  for (const PathItem& item : path) {
    if (text == root) break;
    text += (items.empty() ? "" : ".") + item.text();
    items.push_back(item);
  }
  return text == root ? items : Path();
}

/// The entry of `name` beside the one it is tied to: below the same root of weights.
Path path_beside(const StateEntry& kept, const EntryRole& role, const std::string& name) {
  std::string root = kept.name.substr(0, kept.name.size() - role.fqn.size());
  if (!name.starts_with(root)) return {};
  const std::string fqn = name.substr(root.size());
  if (root.ends_with('.')) root.pop_back();
  Path path = items_of(kept.path, root);
  if (path.empty() && !root.empty()) return {key_item(name)};
  path.push_back(key_item(fqn));
  return path;
}

std::uint32_t add_twin(Manifest& manifest, std::uint32_t of, const std::string& name) {
  StoredTensor twin = manifest.tensors[of];
  const std::uint64_t first = twin.first_chunk;
  twin.name = name;
  twin.first_chunk = manifest.chunks.size();
  const int rank = twin.spec.shape.rank();
  for (std::uint64_t c = first; c < first + twin.chunk_count; ++c) {
    const Source source = manifest.chunks.source(c);
    manifest.chunks.add(manifest.chunks.chunk(c, rank), source);
  }
  manifest.tensors.push_back(std::move(twin));
  return static_cast<std::uint32_t>(manifest.tensors.size() - 1);
}

}  // namespace

std::uint32_t add_twin_entry(Manifest& manifest, std::size_t kept, const EntryRole& role,
                             const std::string& name) {
  const StateEntry entry = manifest.state.entries[kept];
  const std::uint32_t tensor = entry.value.tensor_index();
  Path path = path_beside(entry, role, name);
  if (path.empty() || manifest.tensors[tensor].chunk_count == 0) return kNoTensor;
  const std::uint32_t twin = add_twin(manifest, tensor, name);
  manifest.state.entries.push_back({name, std::move(path), Value::tensor(twin)});
  return twin;
}

AliasEntries::AliasEntries(Manifest& manifest) {
  const std::vector<Alias> aliases = recorded_aliases(manifest);
  if (aliases.empty()) return;
  const Roles roles = find_roles(manifest.state);
  std::map<std::string, std::size_t> weights;
  std::set<std::string> taken;
  for (std::size_t i = 0; i < roles.entries.size(); ++i) {
    const StateEntry& entry = manifest.state.entries[i];
    taken.insert(entry.name);
    if (roles.entries[i].role == Role::kModel && entry.value.is_tensor())
      weights.emplace(entry.name, i);
  }
  for (const auto& [name, kept] : aliases) {
    const auto weight = weights.find(kept);
    if (weight == weights.end() || taken.contains(name)) continue;
    const std::uint32_t tensor = manifest.state.entries[weight->second].value.tensor_index();
    const std::uint32_t twin =
        add_twin_entry(manifest, weight->second, roles.entries[weight->second], name);
    if (twin == kNoTensor) continue;
    tied_.emplace(manifest.tensors[twin].first_chunk, manifest.tensors[tensor].first_chunk);
    taken.insert(name);
  }
  edit_aliases(manifest, [&taken](const Alias& alias) {
    return taken.contains(alias.first) ? std::nullopt : std::optional(alias);
  });
}

std::vector<Alias> AliasEntries::present(const Manifest& manifest) const {
  std::map<std::uint64_t, std::string> names;
  for (const StoredTensor& tensor : manifest.tensors)
    if (!tensor.embedded && tensor.chunk_count > 0) names.emplace(tensor.first_chunk, tensor.name);
  std::vector<Alias> there;
  for (const auto& [entry, kept] : tied_)
    if (names.contains(entry) && names.contains(kept))
      there.emplace_back(names.at(entry), names.at(kept));
  std::ranges::sort(there);
  return there;
}

}  // namespace tessera
