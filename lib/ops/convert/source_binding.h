#pragma once
// Which files a conversion reads: those that an interrupted run read before --resume goes on, and
// those that were there at its start when it ends.
//
//   equal device, inode, size, mtime and ctime (ns)     the same file, untouched
//   one of them differs (a copy back, a remount, a new  the CRC of head, tail and 64 blocks between
//   hard link, another file of equal size and time)     decides
//
// Files that differ in none of the bytes looked at count as equal. Pure but for reading.
#include <tessera/base/bytes.h>
#include <tessera/state/manifest.h>
#include <tessera/storage/file_system.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tessera {

class SourceBinding {
 public:
  /// The binding of files as they are now; missing files are no part of it. `directory`: as it is
  /// on the disk, not held against a seal. Reads at most 384 KiB of each.
  static SourceBinding of(const Directory& directory, std::span<const StoredFile> files,
                          int threads);

  Bytes encode() const;
  /// nullopt for what encode() did not write.
  static std::optional<SourceBinding> decode(ByteView bytes);

  /// The first file that is another one now, or gone; nullopt: none. Throws kIo for one that cannot
  /// be read.
  std::optional<std::string> replaced(const Directory& directory, int threads) const;

 private:
  struct File {
    std::string path;
    std::uint64_t device = 0, inode = 0, size_bytes = 0;
    std::int64_t mtime_ns = 0, ctime_ns = 0;
    std::uint32_t crc32 = 0;
    bool is_summed = false;  // else it could not be read
  };
  static File look_at(const Directory& directory, const FileInfo& info, const std::string& path);

  std::vector<File> files_;
};

}  // namespace tessera
