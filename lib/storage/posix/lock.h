#pragma once
// Lock files on the real file system.
#include <tessera/storage/file_system.h>

#include <memory>
#include <string>

namespace tessera::storage {

/// FileSystem::try_lock by an open-file-description lock: it excludes other processes and other
/// holders in this one, works over NFS, and ends with the holder however that ends.
std::unique_ptr<FileLock> try_posix_lock(const std::string& path);

}  // namespace tessera::storage
