#pragma once
// A stage that another process opened, as seen by one that writes some of its files: a rank of a
// distributed save. Files are created O_EXCL; the process that publishes syncs the folders and
// renames.
#include <tessera/storage/stage.h>

#include <memory>
#include <string>

namespace tessera {

/// `directory`: Stage::directory() of the opener, `final_path` its final path. Throws kIo when that
/// folder is not to be seen from here. Nothing is journalled; publish() and keep() are kInternal;
/// discard() and the destructor leave everything to the opener.
std::unique_ptr<Stage> join_stage(FileSystem& fs, const std::string& directory,
                                  const std::string& final_path);

}  // namespace tessera
