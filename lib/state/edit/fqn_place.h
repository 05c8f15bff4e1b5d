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
/// replaced. One item stays one (an integer key an integer). Of a run of items those stay that
/// spell what the old and the new FQN begin or end with, and so do the others' numbers of
/// components where they can.
Path renamed_path(const Path& path, std::size_t at, std::size_t length, const std::string& new_fqn);

/// Fits paths of `renamed` entries to the others': a number inside of a list is an index of it.
/// Throws kInvalidArgument where an entry would lie inside of a leaf, or in a list without a
/// number.
void settle_renamed(StateDict& state, const std::vector<bool>& renamed);

}  // namespace tessera
