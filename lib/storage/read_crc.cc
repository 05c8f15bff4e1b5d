#include "lib/storage/read_crc.h"

#include <tessera/storage/aligned_buffer.h>
#include <tessera/storage/checksum.h>

#include <algorithm>

namespace tessera {

std::uint32_t read_crc32(std::uint32_t crc, const ReadFile& file, std::uint64_t offset,
                         std::uint64_t length, std::uint64_t block_bytes,
                         const std::function<void(std::size_t)>& tick) {
  if (length == 0) return crc;
  // Goes back as it came: a block of the heap would leave a hole among what outlives it.
  AlignedBuffer buffer(static_cast<std::size_t>(std::min(length, block_bytes)));
  for (std::uint64_t done = 0; done < length; done += block_bytes) {
    const MutableBytes block(buffer.data(),
                             static_cast<std::size_t>(std::min(length - done, block_bytes)));
    file.read_at(offset + done, block);
    if (tick) tick(block.size());
    crc = crc32(crc, block);
  }
  return crc;
}

}  // namespace tessera
