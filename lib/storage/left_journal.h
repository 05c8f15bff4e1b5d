#pragma once
// Finding the journal of an interrupted run.
#include <optional>

#include "lib/storage/journal.h"
#include "lib/storage/stage_paths.h"

namespace tessera::storage {

struct LeftJournal {
  JournalContent content;
  bool is_beside = false;  // paths.journal(), not in the stage
};

/// In the stage, or beside it where the run was killed while it published. nullopt: none, or one
/// whose stage is not what it speaks of: after an exchange that is the old output.
std::optional<LeftJournal> find_left_journal(const FileSystem& fs, const StagePaths& paths);

}  // namespace tessera::storage
