#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/encoding/json.h>
#include <tessera/ops/rename.h>
#include <tessera/state/roles.h>

#include <algorithm>

namespace tessera {

namespace {

std::vector<std::pair<std::string, std::string>> from_json(std::string_view text) {
  Value root;
  try {
    root = parse_json(as_bytes(text));
  } catch (const Error& error) {
    fail(Code::kInvalidArgument, fmt::format("the name map: {}", error.status().message));
  }
  std::vector<std::pair<std::string, std::string>> map;
  for (const auto& [from, to] : root.as_dict()) {
    if (!to.is_string() || to.as_string().empty()) {
      fail(Code::kInvalidArgument,
           fmt::format("the name map: \"{}\" does not map to a name", from.as_string()));
    }
    map.emplace_back(from.as_string(), to.as_string());
  }
  return map;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> parse_name_map(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return {};
  if (text[first] == '{') return from_json(text);
  std::vector<std::pair<std::string, std::string>> map;
  std::size_t number = 0;
  for (std::string_view line : split(text, '\n')) {
    ++number;
    std::size_t begin = line.find_first_not_of(kBlank);
    if (begin == std::string_view::npos || line[begin] == '#') continue;
    line = line.substr(begin, line.find_last_not_of(kBlank) - begin + 1);
    std::size_t gap = line.find_first_of(kBlank);
    std::size_t second = gap == std::string_view::npos ? gap : line.find_first_not_of(kBlank, gap);
    if (second == std::string_view::npos ||
        line.find_first_of(kBlank, second) != std::string_view::npos) {
      fail(Code::kInvalidArgument,
           fmt::format("the name map, line {}: expected \"old new\"", number));
    }
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
  std::sort(fqns.begin(), fqns.end());
  fqns.erase(std::unique(fqns.begin(), fqns.end()), fqns.end());
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

}  // namespace

AppliedTransformation apply_renames(Manifest& manifest, const NameRules& rules) {
  AppliedTransformation applied{"rename", "", 0, {}};
  if (rules.empty()) return applied;
  Roles roles = find_roles(manifest.state);
  NameMap map(with_patterns(rules));
  const std::vector<std::string> fqns = names_to_rename(roles);
  map.check_bijection(fqns);
  map.check_all_used();
  for (const std::string& fqn : fqns) {
    const std::string fresh = map.apply(fqn);
    if (fresh != fqn) applied.changes.push_back(fmt::format("{} -> {}", fqn, fresh));
  }
  applied.tensors = applied.changes.size();
  applied.detail = fmt::format("{} names", applied.tensors);
  rename_parameters(manifest, roles, [&map](const std::string& fqn) { return map.apply(fqn); });
  return applied;
}

}  // namespace tessera
