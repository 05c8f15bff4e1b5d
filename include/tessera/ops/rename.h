#pragma once
// Renaming of what a checkpoint holds, by FQN: a parameter's optimizer state and its place in the
// groups follow its name. Pure functions on a Manifest; no I/O.
#include <tessera/state/manifest.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera {

/// How FQNs change: strip_prefix first, then `map`, else the first of `renames` that matches.
struct NameRules {
  std::string strip_prefix;                              // "module."
  std::vector<std::pair<std::string, std::string>> map;  // exact old -> new (--map FILE)
  std::vector<std::pair<std::string, std::string>>
      renames;  // "layers.*" -> "h.*": the n-th `*` is the n-th match
  bool empty() const { return strip_prefix.empty() && map.empty() && renames.empty(); }
};

/// "OLD=NEW" of --rename. Throws kInvalidArgument.
std::pair<std::string, std::string> parse_rename(std::string_view text);
/// --map FILE: lines "old new" (blank or tab between, '#' comments), or the JSON object {"old":
/// "new"}.
std::vector<std::pair<std::string, std::string>> parse_name_map(std::string_view text);

/// Renames model tensors and values, their optimizer state and group members.
/// Throws kInvalidArgument when two names become one or a rule matches nothing.
void apply_renames(Manifest& manifest, const NameRules& rules);

}  // namespace tessera
