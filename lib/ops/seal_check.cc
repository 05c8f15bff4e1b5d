#include "lib/ops/seal_check.h"

#include <tessera/storage/checksum.h>

#include <algorithm>

namespace tessera {

SealedBlocks check_sealed_blocks(const ReadFile& file, const SealedFile& sealed,
                                 const std::function<void(std::size_t)>& tick) {
  SealedBlocks blocks;
  Bytes buffer(static_cast<std::size_t>(std::min(kMiB, sealed.size_bytes)));
  for (std::uint64_t at = 0; at < sealed.size_bytes; at += kMiB, ++blocks.count) {
    const MutableBytes part = MutableBytes(buffer).first(
        static_cast<std::size_t>(std::min(kMiB, sealed.size_bytes - at)));
    file.read_at(at, part);
    tick(part.size());
    const bool right = blocks.count < sealed.crc32_per_mib.size() &&
                       crc32(0, part) == sealed.crc32_per_mib[blocks.count];
    if (!right && blocks.wrong++ == 0) blocks.first_wrong = blocks.count;
  }
  return blocks;
}

}  // namespace tessera
