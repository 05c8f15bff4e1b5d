#pragma once
// Which stored chunks a plan reads, and which checksums it can prove by that.
//
// Exact replicas: one is read, from the file with the least bytes chosen so far (then the lowest
// index), so the choice depends on the manifest and the order of calls alone. What is chosen covers
// the tensor exactly once, or the call throws.
#include <tessera/base/progress.h>
#include <tessera/reshard/executor.h>
#include <tessera/state/manifest.h>
#include <tessera/storage/checksum.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "lib/reshard/file_pool.h"

namespace tessera {

class SourceChooser {
 public:
  explicit SourceChooser(const Manifest& manifest) : manifest_(manifest) {}
  /// Chunk numbers relative to the tensor's first, ascending; empty chunks left out. Throws
  /// kCorrupt (hole, overlap, out of bounds) naming the tensor.
  std::vector<std::uint32_t> choose(std::uint32_t tensor);

 private:
  const Manifest& manifest_;
  std::vector<std::uint64_t> load_bytes_;  // per file
};

/// Throws kCorrupt where the record's bytes, which have this CRC, are not those that were stored.
void check_record(const Record& record, std::uint32_t crc);
/// What several have read of one record, ascending and without overlap: of what overlaps, one
/// speaks. Throws kCorrupt where two read exactly the same run and found other bytes.
std::vector<CrcRun> joined_runs(std::vector<CrcRun> runs);
/// CRC of the record, of which `runs` (ascending, without overlap) are known and the rest is read,
/// `block_bytes` at a time.
std::uint32_t crc_with_rest(const Record& record, std::span<const CrcRun> runs,
                            const ReadFile& file, std::uint64_t block_bytes,
                            const CancelToken* cancel);

/// Folds CRCs of what was read into the records they belong to and compares, once a record is
/// complete. Thread-safe.
class RecordProver {
 public:
  explicit RecordProver(const Manifest& manifest) : manifest_(manifest) {}
  ~RecordProver();

  /// Chunks (indices in Manifest::chunks) that will be read, whole or in part, each element once.
  /// Where chunks overlap (tied tensors, views), the first in file order speaks. Call once, before
  /// any add.
  void expect(std::span<const std::uint64_t> chunks);
  /// True when bytes read for this chunk must be reported.
  bool wants(std::uint64_t chunk) const { return wanted_.contains(chunk); }
  /// [offset, offset + length) of the chunk's file has this CRC. Throws kCorrupt when the record is
  /// complete and differs.
  void add(std::uint64_t chunk, std::uint64_t offset, std::uint64_t length, std::uint32_t crc);
  /// True for the first caller: a chunk whose record must be read apart (its own reads are not one
  /// run).
  bool claim(std::uint64_t chunk);
  /// Reads the rest of the records whose tiling has all been added, and proves those. Call once,
  /// when everything is read. Throws kCorrupt as add() does.
  void finish(FilePool& files);
  /// The same for every record that reading proves and has not yet, however much of it was read:
  /// what an interrupted run took over was in memory before its record was proved.
  void finish_all(FilePool& files, int threads, const CancelToken* cancel);
  /// After finish(): the expected records that it has left unproved, ascending. What was read of a
  /// record in very many runs is left out.
  std::vector<UnprovedRecord> unproved() const;

  /// Part of a record that was read: `run.offset` in the record.
  struct ReadPart {
    std::uint64_t record = 0;  // index in Manifest::records
    CrcRun run;
  };
  /// Gives up what is known of records that are not whole yet: other processes read the rest.
  std::vector<ReadPart> give_parts();
  /// Parts of records that nobody else proves, from every process. Where processes read the same
  /// bytes, one of them speaks. Throws kCorrupt as add() does; finish() comes after.
  void take_parts(std::vector<ReadPart> parts);
  std::uint64_t proved_bytes() const;

 private:
  void compare(std::uint32_t record, std::uint32_t crc);
  template <class Work>
  void naming_tensor(std::uint32_t record, Work&& work) const;
  void read_rest(std::uint32_t record, std::span<const CrcRun> read, FilePool& files,
                 const CancelToken* cancel);

  const Manifest& manifest_;
  std::set<std::uint64_t> wanted_;
  struct Expected {
    std::uint64_t chunk = 0;         // of its tiling, the first
    std::uint64_t tiling_bytes = 0;  // 0: so little is read of the record that nothing is added
  };
  std::map<std::uint32_t, Expected> expected_;  // by record
  mutable std::mutex mutex_;
  std::unordered_map<std::uint32_t, std::unique_ptr<CrcFold>> open_;
  std::unordered_set<std::uint32_t> proved_;
  std::unordered_set<std::uint32_t> overlapping_;  // of what was taken, not all runs could speak
  std::set<std::uint64_t> claimed_;
  std::uint64_t proved_bytes_ = 0;
};

}  // namespace tessera
