#pragma once
// A folder in which a link to a regular file stands for that file, wherever it lies: the cache of
// the Hugging Face Hub (snapshots/ -> blobs/), or a run whose files were linked together. Whoever
// made the folder chose them. Names still lead nowhere else: no "..", no absolute ones, no folder
// that is a link, and nothing of the kernel (/proc, /sys, /dev). A link to anything but a regular
// file stays a link, which readers refuse.
#include <tessera/storage/file_system.h>

#include <memory>

namespace tessera::storage {

/// `fs` outlives it. Thread-safe as `directory` is.
std::unique_ptr<Directory> follow_file_links(const FileSystem& fs,
                                             std::unique_ptr<Directory> directory);

/// Wraps fs.open_directory(path).
std::unique_ptr<Directory> open_linked_directory(const FileSystem& fs, const std::string& path);

}  // namespace tessera::storage
