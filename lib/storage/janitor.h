#pragma once
// Cleaning up after runs that ended between two steps: only names of ours, only of one final name,
// only what nobody holds.
#include "lib/storage/stage_paths.h"

namespace tessera::storage {

/// A replacement that stopped between its two renames (final name absent, old content in the trash)
/// is undone. Two such trashes throw kAlreadyExists: only the user knows which one to keep.
void repair_interrupted(FileSystem& fs, const StagePaths& paths);

/// Removes stages, trash, journals and lock files of earlier runs to the same final name whose lock
/// is free, those of `paths.hash` left out. Failing to remove one is not an error: the next run
/// tries again.
void remove_stale(FileSystem& fs, const StagePaths& paths);

/// A stage of another request for the same final name; "": none.
std::string other_stage(const FileSystem& fs, const StagePaths& paths);

/// The same as remove_stale for `paths.hash`, whose lock the caller holds: the stage and its
/// journal (unless it is to be resumed) and the trash of a finished replacement. Here a failure
/// counts, since the names are needed.
void remove_own_leftovers(FileSystem& fs, const StagePaths& paths, bool keep_stage);

}  // namespace tessera::storage
