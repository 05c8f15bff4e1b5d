#pragma once
// CRC-32 of bytes of a file, read a block at a time.
#include <tessera/storage/file_system.h>

#include <cstddef>
#include <cstdint>
#include <functional>

namespace tessera {

/// Continues `crc` (0 to start) over [offset, offset + length). `tick`, if any, is called with the
/// size of each block that was read, and may throw. Throws what reading throws.
std::uint32_t read_crc32(std::uint32_t crc, const ReadFile& file, std::uint64_t offset,
                         std::uint64_t length, std::uint64_t block_bytes,
                         const std::function<void(std::size_t)>& tick = {});

}  // namespace tessera
