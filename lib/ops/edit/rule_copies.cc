#include "lib/ops/edit/rule_copies.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/state/optim_state.h>
#include <tessera/state/roles.h>

#include <map>
#include <set>

#include "lib/ops/edit/alias_entries.h"
#include "lib/ops/edit/ties.h"

namespace tessera {
namespace {

/// Entries of weights by root and FQN.
std::map<std::pair<std::string, std::string>, std::size_t> weight_entries(const Manifest& manifest,
                                                                          const Roles& roles) {
  std::map<std::pair<std::string, std::string>, std::size_t> entries;
  for (std::size_t i = 0; i < roles.entries.size(); ++i) {
    const StateEntry& entry = manifest.state.entries[i];
    const EntryRole& role = roles.entries[i];
    if (role.role != Role::kModel || !entry.value.is_tensor()) continue;
    entries.emplace(std::pair(entry.name.substr(0, entry.name.size() - role.fqn.size()), role.fqn),
                    i);
  }
  return entries;
}

}  // namespace

std::vector<Alias> drop_copies(OpenedCheckpoint& checkpoint,
                               const std::vector<std::pair<std::string, std::string>>& copies,
                               bool compare, const TransferOptions& transfer) {
  if (copies.empty()) return {};
  Manifest& manifest = checkpoint.manifest;
  const Roles roles = find_roles(manifest.state);
  const std::map<std::string, std::string> kept(copies.begin(), copies.end());
  for (const OptimState& optim : canonical_optim_states(manifest, roles))
    for (const OptimParameter& parameter : optim.parameters)
      if (kept.contains(parameter.fqn) && !parameter.leaves.empty())
        fail(Code::kUnsupported,
             fmt::format("\"{}\" is a copy of \"{}\" by the rules, and has state of its own in the "
                         "optimizer: it was trained apart",
                         printable(parameter.fqn), printable(kept.at(parameter.fqn))),
             "--exclude leaves it out");
  const auto entries = weight_entries(manifest, roles);
  std::vector<Alias> ties;
  for (const auto& [place, i] : entries) {
    const auto of = kept.find(place.second);
    if (of == kept.end()) continue;
    const auto other = entries.find({place.first, of->second});
    if (other == entries.end()) continue;
    const StateEntry& copy = manifest.state.entries[i];
    const StateEntry& stays = manifest.state.entries[other->second];
    if (compare && !same_content(manifest, *checkpoint.directory, copy.value.tensor_index(),
                                 stays.value.tensor_index(), transfer))
      fail(Code::kUnsupported,
           fmt::format("\"{}\" is a copy of \"{}\" by the rules, and its bytes are others",
                       printable(copy.name), printable(stays.name)),
           "--exclude leaves it out");
    ties.emplace_back(copy.name, stays.name);
  }
  drop_ties(manifest, ties);
  return ties;
}

void make_copies(Manifest& manifest,
                 const std::vector<std::pair<std::string, std::string>>& copies) {
  if (copies.empty()) return;
  const Roles roles = find_roles(manifest.state);
  std::set<std::string> taken;
  for (const StateEntry& entry : manifest.state.entries) taken.insert(entry.name);
  for (const auto& [place, i] : weight_entries(manifest, roles)) {
    for (const auto& [copy, of] : copies) {
      if (of != place.second) continue;
      const std::string name = place.first + copy;
      if (!taken.insert(name).second)
        fail(Code::kInvalidArgument,
             fmt::format("two entries would be named \"{}\"", printable(name)));
      add_twin_entry(manifest, i, roles.entries[i], name);
    }
  }
}

}  // namespace tessera
