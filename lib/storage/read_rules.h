#pragma once
// The one rule on reading at the end of a file, for every file system.
#include <tessera/storage/file_system.h>

#include <cstdint>
#include <string>

namespace tessera::storage {

/// How many of the `length` bytes asked for at `offset` lie inside a file of `size_bytes`. Asking
/// past the end throws kCorrupt, but for the rest of the last block of a file opened with
/// IoMode::kDirect.
std::size_t readable_bytes(const std::string& path, std::uint64_t size_bytes, IoMode mode,
                           std::uint64_t offset, std::size_t length);

}  // namespace tessera::storage
