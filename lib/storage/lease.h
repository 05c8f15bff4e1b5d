#pragma once
// The locks of a run: the lease of its stage, and its turn to publish.
#include <memory>
#include <optional>
#include <string>

#include "lib/storage/stage_paths.h"

namespace tessera::storage {

/// nullopt: the file system has no locks; nullptr: another one holds it.
using TriedLock = std::optional<std::unique_ptr<FileLock>>;
TriedLock try_lock(FileSystem& fs, const std::string& path);
/// The same, waiting up to `wait_ms` for another one to let go.
TriedLock try_lock_within(FileSystem& fs, const std::string& path, int wait_ms);

/// Held while the stage is in use. nullptr: the file system has no locks. Throws kAlreadyExists
/// when another run of the same request holds it.
std::unique_ptr<FileLock> take_lease(FileSystem& fs, const StagePaths& paths);

/// Runs of different requests may write beside each other; they publish to the same name one after
/// the other, since a file and its seal take several renames. Waits up to `wait_ms`, then throws
/// kAlreadyExists. nullptr: no locks.
std::unique_ptr<FileLock> take_turn(FileSystem& fs, const StagePaths& paths, int wait_ms);

}  // namespace tessera::storage
