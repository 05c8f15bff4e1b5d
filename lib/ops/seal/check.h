#pragma once
// The bytes of a sealed file held against the CRC of each MiB in its seal; those of a record
// against its own.
#include <tessera/ops/seal.h>
#include <tessera/storage/file_system.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tessera {

struct SealedBlocks {
  std::size_t count = 0;             // of a MiB, the last one maybe less
  std::vector<std::size_t> wrong;    // in order
  std::vector<std::uint32_t> found;  // CRC of each wrong one
};

/// Reads [0, sealed.size_bytes); `tick` is called with the size of each block, and may throw.
SealedBlocks check_sealed_blocks(const ReadFile& file, const SealedFile& sealed,
                                 const std::function<void(std::size_t)>& tick);

/// Reads all of the record; `tick` as above.
std::uint32_t record_crc(const ReadFile& file, const Record& record,
                         const std::function<void(std::size_t)>& tick);

/// The tensors of `manifest` that have bytes in the wrong blocks of file `path`, in its order.
/// Items that are not located yet count whole.
std::vector<std::string> tensors_in(const SealedBlocks& blocks, const Manifest& manifest,
                                    std::string_view path);
/// As tensors_in, of those that hold one byte of the file.
std::vector<std::string> tensors_at(std::uint64_t byte, const Manifest& manifest,
                                    std::string_view path);
/// "3 of 8 MiB blocks differ from <what>, first block 2; "a", "b" and 4 more lie there".
std::string describe_blocks(const SealedBlocks& blocks, std::string_view what,
                            const std::vector<std::string>& tensors);

}  // namespace tessera
