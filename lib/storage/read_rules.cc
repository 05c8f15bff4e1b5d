#include "lib/storage/read_rules.h"

#include <fmt/format.h>
#include <tessera/base/error.h>

#include <algorithm>

namespace tessera::storage {

std::size_t readable_bytes(const std::string& path, std::uint64_t size_bytes, IoMode mode,
                           std::uint64_t offset, std::size_t length) {
  std::uint64_t limit = size_bytes;
  if (mode == IoMode::kDirect)
    limit = (size_bytes + kIoAlignment - 1) / kIoAlignment * kIoAlignment;
  if (offset > limit || length > limit - offset) {
    fail(Code::kCorrupt,
         fmt::format("file ends at {} bytes, but {} bytes at offset {} are needed: {}", size_bytes,
                     length, offset, path));
  }
  const std::uint64_t inside = size_bytes > offset ? size_bytes - offset : 0;
  return static_cast<std::size_t>(std::min<std::uint64_t>(length, inside));
}

}  // namespace tessera::storage
