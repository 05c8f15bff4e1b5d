#pragma once
// Reader of the zip archives that torch.save writes: every record stored, one top folder (or none,
// as Keras writes them).
//
//   local header | name | extra | bytes | descriptor     per record, the first at 0
//   central directory | zip64 end | locator | end        ends with the window
//
// Untrusted: the directory is bounded by the bytes present; names are unique, relative and without
// tricks; records lie before the directory and do not overlap. Compression, encryption and split
// archives are kUnsupported, damage is kCorrupt. Local headers are read and compared with the
// directory only when a record is located or read.
//
// torch.serialization.set_crc32_options(False) leaves 0 as the CRC-32 of every record. Such an
// archive has no checksums; zero beside others is a CRC-32 like any other.
//
// Small windows are read whole, once. For others, one block at the end and one at the start are
// kept, which is enough for a single-tensor item. Not thread-safe (the blocks are filled on use).
#include <tessera/encoding/byte_window.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

struct ZipEntry {
  std::string name;                 // below the top folder: "data/0"
  std::uint64_t header_offset = 0;  // window-relative local header
  std::uint64_t size_bytes = 0;     // as it lies in the file
  std::uint64_t end_limit =
      0;  // the next record's header, or the directory: this record ends before it
  std::uint32_t crc32 = 0;
  std::uint16_t flags = 0;
  std::uint16_t method = 0;  // 0 stored; others are listed but never read
};

/// Where the entries stand.
enum class ZipTop : std::uint8_t { kOneFolder, kAsNamed };

class ZipReader {
 public:
  /// Reads and checks the directory. `head`: the first head_bytes() of the window, if the caller
  /// has them.
  explicit ZipReader(const ByteWindow& window, Bytes head = {}, ZipTop top = ZipTop::kOneFolder);
  /// Bytes of a small window, or of the first block of a larger one.
  static std::uint64_t head_bytes(const ByteWindow& window);
  /// What is read at once at either end of a larger window: enough for an archive of one tensor.
  static constexpr std::uint64_t kHeadBytes = 1024;
  static constexpr std::uint64_t kTailBytes = 1536;
  ~ZipReader();
  ZipReader(ZipReader&&) noexcept;
  ZipReader& operator=(ZipReader&&) noexcept;

  const std::string& prefix() const { return prefix_; }  // the top folder; "" with kAsNamed
  const std::vector<ZipEntry>& entries() const {
    return entries_;
  }                                                   // as in the directory; folders left out
  const ZipEntry* find(std::string_view name) const;  // ASCII letters of either case
  /// False: its writer computed no CRC-32.
  bool has_checksums() const { return has_checksums_; }

  /// Throws kUnsupported unless the entry is stored.
  static void refuse_compression(const ZipEntry& entry);
  /// Window-relative start of the record's bytes, after its local header was found to agree with
  /// the directory.
  std::uint64_t data_offset(const ZipEntry& entry);
  /// The record's bytes, proved by its CRC-32 where there are checksums.
  Bytes read(const ZipEntry& entry);

 private:
  class Blocks;
  struct End;
  End find_end();
  void read_zip64_end(End& end);
  void parse_directory(ByteView directory, const End& end);
  std::size_t parse_entry(ByteView directory, std::size_t at);
  void set_prefix_and_names(ZipTop top);
  /// As in the archive, the top folder included.
  std::uint64_t name_bytes(const ZipEntry& entry) const {
    return entry.name.size() + (prefix_.empty() ? 0 : prefix_.size() + 1);
  }
  void check_extents(std::uint64_t directory_offset);

  std::unique_ptr<Blocks> blocks_;
  std::string prefix_;
  std::vector<ZipEntry> entries_;
  std::vector<std::uint32_t> by_name_;
  bool has_checksums_ = true;
};

}  // namespace tessera
