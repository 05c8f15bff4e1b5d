#pragma once
// ItemReader: the bytes of stored items, as windows that archive parsers read through.
//
// An item is a torch.save archive somewhere inside a data file, one after the other without gaps.
// Parsers look at its head (headers, data.pkl) and its tail (directory); reading each of those by
// its own system call is slow, so a small piece around them is read ahead:
//
//   small items  |item|item|item|item|            one read of up to 1 MiB covers a run of them
//   large items  |head ......... tail|head ....   2 KiB of head; 2 KiB of tail and the next
//                                                 item's head
//
// Items of one file are asked for in ascending offsets. One reader serves one thread.
#include <tessera/base/error.h>
#include <tessera/encoding/byte_window.h>
#include <tessera/format/format_driver.h>
#include <tessera/state/findings.h>
#include <tessera/state/manifest.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace tessera::dcp {

/// Where an item lies. `codecs`: 1 + index in Manifest::codecs, 0 = stored plain.
struct Item {
  std::uint32_t file = 0;
  std::uint32_t codecs = 0;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

/// The code of an item that could not be read. What the system would not read says nothing of what
/// is in it.
inline Finding item_finding(const Status& why) {
  return why.code == Code::kIo ? Finding::kUnreadableFile : Finding::kBadItem;
}

/// An open item: a window on the file, or on memory when it was stored encoded.
struct OpenItem {
  ByteWindow window;
  std::shared_ptr<const ReadFile> decoded;  // owns the memory; null for plain items
  std::unique_lock<std::mutex> alone;       // held while a large one is in memory
};

/// What one encoded item may decode to: half of the memory limit, whatever the number of threads.
inline std::uint64_t most_decoded_bytes(const ReadOptions& options) {
  return options.memory_limit_bytes / 2;
}

class ReadAhead;

class ItemReader {
 public:
  /// `manifest`: its files and codecs; both outlive the reader. `large`: of the readers that work
  /// at the same time, one decodes an item that is larger than a thread's share.
  ItemReader(const Directory& directory, const Manifest& manifest, const ReadOptions& options,
             std::mutex* large = nullptr);
  ~ItemReader();

  /// `run_end`: where the run of small items that this one starts or continues ends in the file.
  /// Throws kCorrupt (damaged encoding), kResourceExhausted (decodes to more than the memory
  /// limit), kNotFound, kIo.
  OpenItem open(const Item& item, std::uint64_t run_end);

  /// From `offset` to the end of a file, not read ahead.
  ByteWindow rest_of_file(std::uint32_t file, std::uint64_t offset);

 private:
  ReadAhead& file(std::uint32_t index);
  Bytes decode_item(const Item& item, ByteView stored, std::uint64_t most_bytes) const;

  const Directory& directory_;
  const Manifest& manifest_;
  const ReadOptions& options_;
  std::mutex* large_;
  std::uint32_t open_index_ = 0;
  std::unique_ptr<ReadAhead> open_file_;
};

inline constexpr std::uint64_t kSmallItemBytes = 64 << 10;
inline constexpr std::uint64_t kRunBytes = 256 << 10;

/// For items sorted by (file, offset): run_end of each, i.e. the end of the last small item of the
/// same file that follows without a gap of more than a page, within kRunBytes.
std::vector<std::uint64_t> run_ends(const std::vector<Item>& items);

}  // namespace tessera::dcp
