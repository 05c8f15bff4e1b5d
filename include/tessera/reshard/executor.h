#pragma once
// Executor: runs a Plan. The only code that moves tensor bytes from files to files. Reads each
// source byte once and writes each destination byte once, in long runs on both sides, for any
// sharding of source and destination.
//
//   unit (units.h) --gather--> blocks of the destination files --checksums--> write, journal
//
// Staged tensor bytes of all threads together stay below the memory limit (plus one run). The files
// are byte-identical for every thread count. Literals and deferred bytes go along with the tensors
// beside them where they can, the rest at the end. Errors: the one of the earliest unit; the stage
// is left to the caller, who discards or keeps it.
#include <tessera/base/rank_group.h>
#include <tessera/reshard/plan.h>
#include <tessera/reshard/tensor_reader.h>
#include <tessera/storage/checksum.h>
#include <tessera/storage/file_system.h>
#include <tessera/storage/stage.h>
#include <tessera/tensor/cast.h>

#include <cstdint>
#include <map>
#include <vector>

namespace tessera {

/// A record that has a checksum but was read only in part, so that nothing about it is proved.
struct UnprovedRecord {
  std::uint32_t record = 0;  // index in Manifest::records
  std::uint64_t chunk = 0;   // one of those read: index in Manifest::chunks
  std::vector<CrcRun> runs;  // what was read, from the record's first byte; may be left out
};

struct TransferResult {
  std::vector<std::vector<std::uint32_t>> crc32_per_mib;  // per output file, one per MiB begun
  std::uint64_t bytes_read = 0;     // tensor bytes, holes read through included
  std::uint64_t bytes_written = 0;  // all output bytes, but for those resumed
  std::uint64_t resumed_bytes = 0;  // found finished in the stage's journal, re-read and proved
  std::uint64_t proved_bytes = 0;   // source bytes whose stored checksum was proved
  std::uint64_t peak_staged_bytes = 0;
  /// Elements that did not fit when they were cast, by tensor (index in Manifest::tensors): one
  /// entry per tensor that was cast. What was resumed is not counted again.
  std::map<std::uint32_t, CastCounts> casts;
  std::vector<UnprovedRecord> unproved;  // of fill() and prove_fill(), ascending by record
};

/// Writes every file of `output` into `stage`, synced and closed. Throws kCorrupt (checksum, short
/// file), kCancelled, kIo, kResourceExhausted.
TransferResult transfer(const Manifest& source, const Directory& directory,
                        const OutputPlan& output, const Plan& plan, FileSystem& fs, Stage& stage,
                        const TransferOptions& options);

/// The same by every process of `ranks` together: each writes its share of the output (about as
/// many bytes as every other, whichever files those are in), and the result is byte-identical to
/// one process'. Collective, with the same arguments but `stage`, which is join_stage() of one
/// folder for every rank, and may differ in threads and memory. An error on any rank ends it on
/// all, with the first failing rank's. Progress shows all ranks' bytes. Rank 0 gets the whole
/// result, the others only the counts of what they did.
TransferResult transfer(const Manifest& source, const Directory& directory,
                        const OutputPlan& output, const Plan& plan, FileSystem& fs, Stage& stage,
                        const TransferOptions& options, RankGroup& ranks);

/// Least memory that decoding this chunk's compressed item takes, and what transfer() has for all
/// such items that it decodes at once: where the first is more, transfer() throws
/// kResourceExhausted.
std::uint64_t coded_bytes_needed(const Manifest& source, const StoredTensor& tensor,
                                 std::uint32_t chunk);
std::uint64_t coded_bytes_bound(const TransferOptions& options);

/// Bound of what transfer() stages at once, for the same arguments.
std::uint64_t staged_bytes_bound(const TransferOptions& options);

}  // namespace tessera
