#pragma once
// The bytes of a sealed file held against the CRC of each MiB in its seal.
#include <tessera/ops/seal.h>
#include <tessera/storage/file_system.h>

#include <cstddef>
#include <functional>

namespace tessera {

struct SealedBlocks {
  std::size_t count = 0;
  std::size_t wrong = 0;
  std::size_t first_wrong = 0;
};

/// Reads [0, sealed.size_bytes); `tick` is told the size of each block and may throw.
SealedBlocks check_sealed_blocks(const ReadFile& file, const SealedFile& sealed,
                                 const std::function<void(std::size_t)>& tick);

}  // namespace tessera
