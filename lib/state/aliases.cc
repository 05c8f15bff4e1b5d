#include <fmt/format.h>
#include <tessera/base/text.h>
#include <tessera/state/aliases.h>

#include <map>
#include <set>

namespace tessera {
namespace {

std::string key_of(std::string_view name) { return std::string(kAliasPrefix) + std::string(name); }

std::set<std::string, std::less<>> leaf_names(const Manifest& manifest) {
  std::set<std::string, std::less<>> names;
  for (const StoredTensor& tensor : manifest.tensors)
    if (!tensor.embedded) names.insert(tensor.name);
  return names;
}

/// Weights by FQN; "" for one that several models have.
std::map<std::string, std::string> weights_by_fqn(const Manifest& manifest, const Roles& roles) {
  std::map<std::string, std::string> weights;
  for (std::size_t i = 0; i < roles.entries.size(); ++i) {
    const StateEntry& entry = manifest.state.entries[i];
    if (roles.entries[i].role != Role::kModel || !entry.value.is_tensor()) continue;
    const auto [known, fresh] = weights.emplace(roles.entries[i].fqn, entry.name);
    if (!fresh) known->second.clear();
  }
  return weights;
}

/// `alias` below another root: "model.head" of "model.embed" is "head" of "embed".
std::optional<Alias> under_another_root(const Alias& alias,
                                        const std::map<std::string, std::string>& weights) {
  const auto& [name, kept] = alias;
  for (std::size_t at = 0; at != std::string::npos;) {
    if (name.compare(0, at, kept, 0, at) != 0) return std::nullopt;
    const std::string fqn = kept.substr(at);
    const auto found = weights.find(fqn);
    if (found != weights.end() && !found->second.empty()) {
      const std::string root = found->second.substr(0, found->second.size() - fqn.size());
      return Alias(root + name.substr(at), found->second);
    }
    const std::size_t dot = kept.find('.', at);
    at = dot == std::string::npos ? dot : dot + 1;
  }
  return std::nullopt;
}

}  // namespace

void record_alias(Manifest& manifest, const std::string& name, const std::string& kept) {
  manifest.provenance[key_of(name)] = kept;
}

std::vector<Alias> recorded_aliases(const Manifest& manifest) {
  std::vector<Alias> aliases;
  for (auto at = manifest.provenance.lower_bound(std::string(kAliasPrefix));
       at != manifest.provenance.end() && at->first.starts_with(kAliasPrefix); ++at)
    aliases.emplace_back(at->first.substr(kAliasPrefix.size()), at->second);
  return aliases;
}

std::optional<std::string> alias_target(const Manifest& manifest, std::string_view name) {
  const auto found = manifest.provenance.find(key_of(name));
  return found == manifest.provenance.end() ? std::nullopt : std::optional(found->second);
}

void check_aliases(Manifest& manifest, const Roles& roles) {
  const std::vector<Alias> aliases = recorded_aliases(manifest);
  if (aliases.empty()) return;
  const auto names = leaf_names(manifest);
  const auto weights = weights_by_fqn(manifest, roles);
  for (const Alias& alias : aliases) {
    const auto& [name, kept] = alias;
    if (!names.contains(name) && names.contains(kept)) continue;
    const auto moved = names.contains(kept) ? std::nullopt : under_another_root(alias, weights);
    if (moved && !names.contains(moved->first)) {
      record_alias(manifest, moved->first, moved->second);
    } else if (!moved && !names.contains(name))
      manifest.notes.push_back(
          {Finding::kLostAlias, Severity::kError,
           fmt::format("is recorded as one tensor with \"{}\", which is not there",
                       printable(kept)),
           "", name});
    manifest.provenance.erase(key_of(name));
  }
}

void edit_aliases(Manifest& manifest, const EditAlias& edit) {
  const std::vector<Alias> before = recorded_aliases(manifest);
  if (before.empty()) return;
  const auto names = leaf_names(manifest);
  for (const Alias& alias : before) manifest.provenance.erase(key_of(alias.first));
  for (const Alias& alias : before)
    if (const auto now = edit(alias); now && names.contains(now->second))
      record_alias(manifest, now->first, now->second);
}

}  // namespace tessera
