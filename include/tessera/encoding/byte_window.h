#pragma once
// ByteWindow: [offset, offset + length) of an open file, addressed from zero. Archives may sit inside files
// (a DCP item is a zip inside a .distcp); every parser reads through a window and cannot leave it.
#include <tessera/storage/file_system.h>

#include <cstdint>
#include <string>

namespace tessera {

struct ByteWindow {
  const ReadFile* file = nullptr;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;

  /// All of `file`.
  static ByteWindow whole(const ReadFile& file);
  /// Throws kCorrupt when [offset, offset + length) leaves this window or the file.
  ByteWindow sub(std::uint64_t offset, std::uint64_t length) const;
  /// Fills `out` from window-relative `at`. Throws kCorrupt past the end of the window.
  void read(std::uint64_t at, MutableBytes out) const;
  Bytes read(std::uint64_t at, std::uint64_t length) const;
};

}  // namespace tessera
