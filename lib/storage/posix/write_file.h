#pragma once
// Opening a file for writing on the real file system.
#include <memory>
#include <string>

#include "lib/storage/posix/options.h"

namespace tessera::storage {

/// `create_new`: O_CREAT | O_EXCL, else the file must exist and be regular. A link at the last
/// component is refused.
std::unique_ptr<WriteFile> open_posix_write_file(std::shared_ptr<const PosixContext> context,
                                                 const std::string& path, IoMode mode,
                                                 bool create_new);

}  // namespace tessera::storage
