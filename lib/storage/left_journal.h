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

/// Looks in the stage, and next to it, where a run that was killed while it published left it.
/// nullopt if absent, or if it describes another stage: after RENAME_EXCHANGE the stage holds the
/// old output.
std::optional<LeftJournal> find_left_journal(const FileSystem& fs, const StagePaths& paths);

}  // namespace tessera::storage
