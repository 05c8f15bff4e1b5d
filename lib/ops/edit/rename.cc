#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/encoding/json.h>
#include <tessera/ops/rename.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <map>
#include <set>

#include "lib/base/sort_unique.h"

namespace tessera {

namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

/// What is wrong with the file, and where.
[[noreturn]] void refuse(std::string_view file, const std::string& what, std::size_t line = 0) {
  std::string where = "the name map";
  if (!file.empty()) where = fmt::format("--map {}", printable(file));
  if (line > 0) where += fmt::format(", line {}", line);
  fail(Code::kInvalidArgument, fmt::format("{}: {}", where, what),
       "lines `old new`, or a JSON object {\"old\": \"new\"}");
}

std::vector<std::pair<std::string, std::string>> from_json(std::string_view text,
                                                           std::string_view file) {
  Value root;
  try {
    root = parse_json(as_bytes(text));
  } catch (const Error& error) {
    refuse(file, error.status().message);
  }
  std::vector<std::pair<std::string, std::string>> map;
  for (const auto& [from, to] : root.as_dict()) {
    if (!to.is_string() || to.as_string().empty())
      refuse(file, fmt::format("\"{}\" does not map to a name", printable(from.as_string())));
    map.emplace_back(from.as_string(), to.as_string());
  }
  return map;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> parse_name_map(std::string_view text,
                                                                std::string_view file) {
  constexpr std::string_view kBlank = " \t\r";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return {};
  if (text[first] == '{') return from_json(text, file);
  std::vector<std::pair<std::string, std::string>> map;
  std::map<std::string_view, std::size_t> seen;  // name -> line
  std::size_t number = 0;
  for (std::string_view line : split(text, '\n')) {
    ++number;
    std::size_t begin = line.find_first_not_of(kBlank);
    if (begin == std::string_view::npos || line[begin] == '#') continue;
    line = line.substr(begin, line.find_last_not_of(kBlank) - begin + 1);
    std::size_t gap = line.find_first_of(kBlank);
    std::size_t second = gap == std::string_view::npos ? gap : line.find_first_not_of(kBlank, gap);
    if (second == std::string_view::npos ||
        line.find_first_of(kBlank, second) != std::string_view::npos)
      refuse(file, fmt::format("expected \"old new\", not \"{}\"", printable(line)), number);
    const auto [known, added] = seen.try_emplace(line.substr(0, gap), number);
    if (!added)
      refuse(file,
             fmt::format("two entries for \"{}\", the other in line {}", printable(known->first),
                         known->second),
             number);
    map.emplace_back(line.substr(0, gap), line.substr(second));
  }
  return map;
}

namespace {

/// The FQNs there are: of the model, else (an optimizer alone) of its state.
std::vector<std::string> names_to_rename(const Roles& roles) {
  std::vector<std::string> fqns;
  for (const Role wanted : {Role::kModel, Role::kOptimState}) {
    for (const EntryRole& role : roles.entries)
      if (role.role == wanted) fqns.push_back(role.fqn);
    if (!fqns.empty()) break;
  }
  sort_unique(fqns);
  return fqns;
}

/// Lines of the map with a star are patterns like those of --rename, and come first.
NameRules with_patterns(NameRules rules) {
  std::vector<std::pair<std::string, std::string>> exact;
  std::vector<std::pair<std::string, std::string>> patterns;
  for (auto& line : rules.map) {
    if (line.first.find('*') == std::string::npos) {
      exact.push_back(std::move(line));
    } else {
      patterns.push_back(parse_rename(line.first + "=" + line.second));
    }
  }
  rules.map = std::move(exact);
  rules.renames.insert(rules.renames.begin(), patterns.begin(), patterns.end());
  return rules;
}

/// What helps where `pattern` names no parameter: parameters go by their names below the model's
/// root, flags that select by whole names.
std::string advice_for(const std::string& pattern, const Roles& roles,
                       const std::vector<std::string>& fqns) {
  for (const std::string& root : roles.model_roots) {
    if (root.empty() || !(pattern + ".").starts_with(root + ".")) continue;
    if (pattern.size() <= root.size() + 1)
      return fmt::format(
          "\"{}\" is where the model stands: --root {} makes it the whole checkpoint",
          printable(root), printable(root));
    return fmt::format("parameters go by their names below \"{}\": write \"{}\"", printable(root),
                       printable(pattern.substr(root.size() + 1)));
  }
  const std::vector<std::string_view> names(fqns.begin(), fqns.end());
  const std::string near = nearest(pattern, names);
  return near.empty() ? "ckpt-inspect ls shows the names"
                      : fmt::format("did you mean \"{}\"?", printable(near));
}

bool of_optimizer(Role role) { return role == Role::kOptimState || role == Role::kOptimGroup; }

/// Names decide what an entry is. One that took a weight for an optimizer's state, or names for
/// ids, would write another state than was asked for.
void check_roles_kept(const Roles& before, const Manifest& manifest,
                      const std::vector<std::string>& old_names) {
  const Roles after = find_roles(manifest.state);
  for (std::size_t i = 0; i < before.entries.size(); ++i) {
    const bool optimizer = of_optimizer(after.entries[i].role);
    if (of_optimizer(before.entries[i].role) == optimizer) continue;
    fail(Code::kInvalidArgument,
         fmt::format("renamed to \"{}\", \"{}\" would be read as {} of an optimizer",
                     printable(manifest.state.entries[i].name), printable(old_names[i]),
                     optimizer ? "a part" : "no part"),
         "choose another name");
  }
  for (std::size_t i = 0; i < after.optimizers.size(); ++i) {
    if (after.optimizers[i].dialect == before.optimizers.at(i).dialect) continue;
    fail(Code::kInvalidArgument,
         fmt::format("with the new names, the keys of optimizer \"{}\" would be read in another "
                     "way, as numbers for names",
                     printable(after.optimizers[i].name)),
         "choose names that are no numbers");
  }
}

}  // namespace

std::vector<std::pair<std::string, std::string>> names_before_compile(const Manifest& manifest) {
  constexpr std::string_view kSegment = "_orig_mod";
  std::vector<std::pair<std::string, std::string>> names;
  std::set<std::string> fresh;
  for (const std::string& fqn : names_to_rename(find_roles(manifest.state))) {
    std::string clean;
    for (const std::string_view part : split(fqn, '.'))
      if (part != kSegment) clean += (clean.empty() ? "" : ".") + std::string(part);
    const bool is_pattern = fqn.find('*') != std::string::npos;
    if (clean.empty() || is_pattern || !fresh.insert(clean).second) return {};
    if (clean != fqn) names.emplace_back(fqn, clean);
  }
  return names;
}

AppliedTransformation apply_renames(Manifest& manifest, const NameRules& rules) {
  AppliedTransformation applied{"rename", "", 0, {}};
  if (rules.empty()) return applied;
  Roles roles = find_roles(manifest.state);
  NameMap map(with_patterns(rules));
  const std::vector<std::string> fqns = names_to_rename(roles);
  map.check_bijection(fqns);
  map.check_all_used([&](const std::string& pattern) { return advice_for(pattern, roles, fqns); });
  for (const std::string& fqn : fqns) {
    const std::string fresh = map.apply(fqn);
    if (fresh != fqn) applied.changes.push_back(fmt::format("{} -> {}", fqn, fresh));
  }
  applied.tensors = applied.changes.size();
  applied.detail = fmt::format("{} names", applied.tensors);
  if (applied.changes.empty()) return applied;
  std::vector<std::string> old_names;
  for (const StateEntry& entry : manifest.state.entries) old_names.push_back(entry.name);
  rename_parameters(manifest, roles, [&map](const std::string& fqn) { return map.apply(fqn); });
  check_roles_kept(roles, manifest, old_names);
  return applied;
}

}  // namespace tessera
