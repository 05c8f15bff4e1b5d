#pragma once
// Opening names of a checkpoint below a held folder without ever leaving it.
#include <sys/stat.h>

#include <memory>
#include <string>
#include <string_view>

#include "lib/storage/posix/options.h"
#include "lib/storage/posix/unique_fd.h"

namespace tessera::storage {

/// A folder held open (O_PATH) with the path it was opened by.
struct HeldDirectory {
  UniqueFd fd;
  std::string path;
};

/// What openat says: a descriptor, or an errno. Links and escapes never come back as a value: they
/// throw kCorrupt.
struct OpenResult {
  UniqueFd fd;
  int error = 0;
};

/// Opens `relative` below `directory` with `flags` (O_CLOEXEC is added). openat2(RESOLVE_BENEATH |
/// NO_SYMLINKS | NO_MAGICLINKS), or, on kernels and sandboxes without it, one O_NOFOLLOW step per
/// component. An empty `relative` is the folder itself.
OpenResult open_beneath(const PosixContext& context, const HeldDirectory& directory,
                        std::string_view relative, int flags);

FileType file_type(mode_t mode);
FileInfo file_info(std::string name, const struct stat& status);

/// The Directory a FileSystem hands out.
std::unique_ptr<Directory> make_posix_directory(std::shared_ptr<const PosixContext> context,
                                                HeldDirectory held);

/// A file opened (O_RDONLY) by open_beneath and found regular.
std::unique_ptr<ReadFile> make_posix_read_file(std::shared_ptr<const PosixContext> context,
                                               std::shared_ptr<const HeldDirectory> directory,
                                               std::string relative, UniqueFd fd,
                                               const struct stat& status, IoMode mode);

}  // namespace tessera::storage
