#pragma once
// CountingFileSystem: what was opened, read and written through it, per path and by range, so that
// a test can say "no tensor byte was read" or "every source byte was read once". Thread-safe.
// Ranges are kept merged: memory grows with the number of separate ranges.
#include <tessera/storage/observed_file_system.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera {

struct IoCounts {
  std::uint64_t opens = 0;  // for reading
  std::uint64_t creates = 0;
  std::uint64_t reads = 0;  // calls
  std::uint64_t writes = 0;
  std::uint64_t bytes_read = 0;  // asked for; a range read twice counts twice
  std::uint64_t bytes_written = 0;
  std::uint64_t syncs = 0;
};

class CountingFileSystem final : public ObservedFileSystem {
 public:
  using ObservedFileSystem::ObservedFileSystem;

  IoCounts total() const;
  /// Counts of the files whose path ends in `suffix`.
  IoCounts of(std::string_view suffix) const;
  /// Disjoint ascending [begin, end) of the file whose path ends in `suffix` (the first such) that
  /// were read.
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges_read(std::string_view suffix) const;
  /// Bytes of [begin, end) of that file that were read at least once.
  std::uint64_t bytes_read_within(std::string_view suffix, std::uint64_t begin,
                                  std::uint64_t end) const;
  /// Every call so far, one "verb path" each in order, without reads and writes (for asserting
  /// orders).
  std::vector<std::string> trace() const;
  void reset();

 protected:
  void after(const IoEvent& event) const override;

 private:
  struct PerPath {
    IoCounts counts;
    std::map<std::uint64_t, std::uint64_t> read;  // begin -> end, disjoint, not adjacent
  };
  const PerPath* find(std::string_view suffix) const;

  mutable std::mutex mutex_;
  mutable std::map<std::string, PerPath> paths_;
  mutable std::vector<std::string> trace_;
};

}  // namespace tessera
