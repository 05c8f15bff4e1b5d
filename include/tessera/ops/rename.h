#pragma once
// Renaming of what a checkpoint holds, by FQN (state/name_map.h): a parameter's optimizer state and
// its place in the groups follow its name. Pure functions on a Manifest; no I/O.
#include <tessera/state/manifest.h>
#include <tessera/state/name_map.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera {

/// --map FILE: lines "old new" (blank or tab between, '#' comments), or the JSON object {"old":
/// "new"}. Throws kInvalidArgument for anything else.
std::vector<std::pair<std::string, std::string>> parse_name_map(std::string_view text);

/// Renames model tensors, their optimizer state and group members.
/// Throws kInvalidArgument when two names become one or a rule matches nothing.
void apply_renames(Manifest& manifest, const NameRules& rules);

}  // namespace tessera
