#pragma once
// Where an FQN (or an id) stands in an entry's name and path, and the entry with another in its
// place. What renaming and editing parameters share.
#include <tessera/state/roles.h>

#include <string>

namespace tessera {

/// The entry lists members of optimizer groups: one group's `params`, or all groups as one value.
bool lists_members(const EntryRole& role, const StateEntry& entry);

/// Where the FQN stands in the dotted name.
std::size_t fqn_position(const StateEntry& entry, const EntryRole& role);

/// The name with `old_fqn`, which stands at `at`, replaced.
std::string renamed(const std::string& name, const std::string& old_fqn, const std::string& new_fqn,
                    std::size_t at);

/// The path with the characters [at, at + length) of its dotted text, which spell the FQN,
/// replaced: one item stays one (an integer key an integer), a run of items becomes the new name's
/// parts.
Path renamed_path(const Path& path, std::size_t at, std::size_t length, const std::string& new_fqn);

}  // namespace tessera
