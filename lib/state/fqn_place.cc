#include "lib/state/fqn_place.h"

#include <tessera/base/text.h>

#include <charconv>

namespace tessera {

bool lists_members(const EntryRole& role, const StateEntry& entry) {
  return role.role == Role::kOptimGroup && entry.value.kind() == Value::Kind::kList &&
         (role.leaf == "params" || role.leaf.empty());
}

std::size_t fqn_position(const StateEntry& entry, const EntryRole& role) {
  if (role.role == Role::kModel || role.leaf.empty()) return entry.name.size() - role.fqn.size();
  const std::string tail = role.fqn + "." + role.leaf;
  if (entry.name.ends_with(tail)) return entry.name.size() - tail.size();
  return entry.name.size() - role.fqn.size();  // leaf first
}

std::string renamed(const std::string& name, const std::string& old_fqn, const std::string& new_fqn,
                    std::size_t at) {
  return name.substr(0, at) + new_fqn + name.substr(at + old_fqn.size());
}

namespace {

/// One item whose text has `length` characters from `at` on replaced.
PathItem renamed_item(const PathItem& item, std::size_t at, std::size_t length,
                      const std::string& new_fqn) {
  const std::string text = item.text();
  const std::string fresh = renamed(text, text.substr(at, length), new_fqn, at);
  std::int64_t id = 0;
  const bool integer =
      item.kind == PathItem::Kind::kIntKey && is_decimal(fresh) &&
      std::from_chars(fresh.data(), fresh.data() + fresh.size(), id).ec == std::errc();
  if (integer) return int_key_item(id);
  return key_item(fresh);
}

}  // namespace

Path renamed_path(const Path& path, std::size_t at, std::size_t length,
                  const std::string& new_fqn) {
  Path out;
  std::size_t begin = 0;
  bool placed = false;
  for (const PathItem& item : path) {
    const std::size_t end = begin + item.text().size();
    if (end < at || begin >= at + length) {
      out.push_back(item);
    } else if (begin <= at && at + length <= end) {  // all of the FQN is in this item
      out.push_back(renamed_item(item, at - begin, length, new_fqn));
    } else if (!placed) {
      for (std::string_view part : split(new_fqn, '.')) out.push_back(key_item(part));
      placed = true;
    }
    begin = end + 1;
  }
  return out;
}

}  // namespace tessera
