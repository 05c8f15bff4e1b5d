#pragma once
// The commit of a result that is one file: the file and, beside it, its seal.
#include <tessera/storage/file_system.h>

#include <string>
#include <string_view>

#include "lib/storage/publication.h"
#include "lib/storage/stage_paths.h"

namespace tessera::storage {

/// In the stage of a one-file result: the seal of the file that is being replaced.
inline constexpr std::string_view kOldSealName = ".tessera-old-seal";

/// Takes the file out of its stage to its final name, and `seal` ("": none) to its place beside it.
/// At every moment the file that shows has its own seal beside it, or none: the seal of another
/// file that happens to have the same size would call sound bytes damaged. So the old seal goes
/// first and does not come back.
void publish_file(FileSystem& fs, const StagePaths& paths, const std::string& seal, bool replaces,
                  Publication& publication);

}  // namespace tessera::storage
