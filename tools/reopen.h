#pragma once
// A checkpoint may be replaced while a command reads it: by `--force`, which exchanges the folder,
// by a rename over a file, by a job that prunes its run. What was read then may be of the old one
// and of the new one, or of neither.
#include <tessera/storage/file_system.h>

#include <functional>
#include <string>
#include <vector>

#include "tools/command.h"

namespace tessera::tools {

/// Runs `work`, which reads `paths`. Where it fails as from damage, or its result is negative, or
/// was read from a file, and one of the paths leads to something else than before, it runs once
/// more. What remains after that is kCorrupt "changed while it was read".
/// `writes`: a result that is there stands.
Outcome read_steadily(const FileSystem& fs, const std::vector<std::string>& paths, bool writes,
                      const std::function<Outcome()>& work);

}  // namespace tessera::tools
