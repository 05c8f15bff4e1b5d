#include <tessera/state/state_values.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace tessera {
namespace {

constexpr std::uint64_t kMostStateLeaves = std::uint64_t{1} << 24;

/// How often each tensor is referred to.
std::vector<std::uint32_t> count_uses(const Manifest& manifest) {
  std::vector<std::uint32_t> uses(manifest.tensors.size());
  for (const StateEntry& entry : manifest.state.entries)
    for_each_tensor(entry.value, [&](std::uint32_t index) { ++uses[index]; });
  return uses;
}

bool can_expand(const StateEntry& entry, const EntryRole& role,
                const std::vector<std::uint32_t>& uses) {
  if (role.role != Role::kOptimState || !role.leaf.empty() || !entry.value.is_dict()) return false;
  bool any = false, alone = true;
  for_each_tensor(entry.value, [&](std::uint32_t index) {
    any = true;
    alone = alone && uses[index] == 1;
  });
  return any && alone;
}

void add_leaves(Manifest& manifest, StateEntry entry, ValueBudget& budget, StateDict& out) {
  for (StateEntry& leaf : flatten(entry.value, budget).entries) {
    Path path = entry.path;
    path.insert(path.end(), leaf.path.begin(), leaf.path.end());
    std::string name = entry.name + "." + leaf.name;
    if (leaf.value.is_tensor()) {
      StoredTensor& tensor = manifest.tensors[leaf.value.tensor_index()];
      tensor.embedded = false;
      tensor.name = name;
    }
    out.entries.push_back({std::move(name), std::move(path), std::move(leaf.value), entry.rank});
  }
}

}  // namespace

void expand_state_values(Manifest& manifest) {
  const Roles roles = find_roles(manifest.state);
  if (roles.optimizers.empty()) return;
  const std::vector<std::uint32_t> uses = count_uses(manifest);
  std::vector<bool> expands(manifest.state.entries.size());
  for (std::size_t i = 0; i < expands.size(); ++i)
    expands[i] = can_expand(manifest.state.entries[i], roles.entries[i], uses);
  if (std::ranges::find(expands, true) == expands.end()) return;
  StateDict out;
  std::vector<std::size_t> before;  // where each entry begins now
  ValueBudget budget(kMostStateLeaves);
  for (std::size_t i = 0; i < manifest.state.entries.size(); ++i) {
    StateEntry& entry = manifest.state.entries[i];
    before.push_back(out.entries.size());
    if (expands[i]) {
      add_leaves(manifest, std::move(entry), budget, out);
    } else {
      out.entries.push_back(std::move(entry));
    }
  }
  for (ContainerNote& note : manifest.state.containers)
    if (note.entries_before < before.size()) note.entries_before = before[note.entries_before];
  out.containers = std::move(manifest.state.containers);
  manifest.state = std::move(out);
  assign_kinds(manifest, find_roles(manifest.state));
}

}  // namespace tessera
