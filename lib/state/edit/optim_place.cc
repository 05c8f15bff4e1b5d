#include "lib/state/edit/optim_place.h"

#include <tessera/base/text.h>

#include <algorithm>
#include <array>

#include "lib/state/role_names.h"

namespace tessera {
namespace {

Path part(const Path& path, std::size_t from, std::size_t to) {
  return Path(path.begin() + static_cast<std::ptrdiff_t>(from),
              path.begin() + static_cast<std::ptrdiff_t>(to));
}

Path leaf_alone(const EntryRole& role) {
  return role.leaf.empty() ? Path() : Path{key_item(role.leaf)};
}

}  // namespace

std::optional<std::size_t> optim_word(const Path& path, const std::string& root) {
  constexpr std::array<std::string_view, 3> kWords = {"state", "param_groups",
                                                      "param_to_group_meta"};
  if (path.size() == 1 && !starts_with_root(path[0].text())) return std::nullopt;
  for (std::size_t i = 0; i < path.size(); ++i) {
    const std::string text = path[i].text();
    const auto is_word = [&](std::string_view word) { return text == word; };
    if (!starts_with_root(text) && std::ranges::none_of(kWords, is_word)) continue;
    const std::string outer = dotted(part(path, 0, i));
    if (outer == root || outer == root + ".optimizer") return i;
  }
  return std::nullopt;
}

Path flat_leaf(std::string_view item, std::string_view fqn) {
  Path leaf;
  const std::size_t from = item.find('.') + 1 + fqn.size() + 1;
  if (from < item.size())
    for (const std::string_view key : split(item.substr(from), '.')) leaf.push_back(key_item(key));
  return leaf;
}

OptimPlace optim_place(const StateEntry& entry, const EntryRole& role, const OptimizerRoot& root) {
  const auto at = optim_word(entry.path, root.name);
  if (!at) return {root.name.empty() ? Path() : Path{key_item(root.name)}, leaf_alone(role)};
  const Path& path = entry.path;
  OptimPlace place{part(path, 0, *at), {}};
  const std::string text = path[*at].text();
  const bool attribute =
      path.size() == *at + 2 && path[*at + 1].text().find('@') != std::string::npos;
  if (starts_with_root(text)) {
    place.rest = flat_leaf(text, role.fqn.view());
    for (std::size_t i = *at + 1; i < path.size(); ++i) place.rest.push_back(path[i]);
  } else if (root.dialect == OptimDialect::kLeafFirst || (role.group >= 0 && attribute)) {
    place.rest = leaf_alone(role);
  } else if (path.size() > *at + 2) {
    place.rest = part(path, *at + 2, path.size());
  }
  return place;
}

bool is_flattened(const StateEntry& entry, const EntryRole& role, const OptimizerRoot& root) {
  const auto at = optim_word(entry.path, root.name);
  return at && starts_with_root(entry.path[*at].text()) && !role.leaf.empty();
}

}  // namespace tessera
