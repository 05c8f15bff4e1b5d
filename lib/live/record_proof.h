#pragma once
// Checksums of what a load reads. A stored checksum covers a whole record, and ranks of another
// number than those that saved read parts of it, which prove nothing alone. All ranks together have
// read most records whole: the CRCs that they send are folded, and one rank reads the parts of a
// record that none has sent.
//
//   every rank: what reading left unproved, with CRCs of what it read
//     -> all of them together -> this rank's share -> the rest read -> stored CRC
#include <tessera/base/rank_group.h>
#include <tessera/ops/open.h>
#include <tessera/reshard/tensor_reader.h>
#include <tessera/state/manifest.h>
#include <tessera/storage/checksum.h>

#include <cstdint>
#include <span>
#include <vector>

namespace tessera {

struct RecordToProve {
  std::uint64_t file = 0;  // index in Manifest::files, the same on all ranks
  std::uint64_t offset = 0, length = 0;
  std::uint32_t tensor = 0;  // one that lies in it
  std::uint64_t chunk = 0;   // of that tensor
  std::vector<CrcRun> runs;  // what was read of it, from its first byte: ascending, no overlap

  std::uint64_t unread_bytes() const;
};

/// What falls to this rank of what all ranks give, with what all have read: each record to one
/// rank, one with nothing unread to one that gave it, the others balanced by unread bytes. Throws
/// kCorrupt, naming tensor and file, where ranks have read other bytes at the same place.
/// Collective.
std::vector<RecordToProve> share_of_records(std::vector<RecordToProve> mine,
                                            const Manifest& manifest, RankGroup& ranks);

/// Reads what is unread of them; returns how many bytes. Throws kCorrupt, naming tensor and file.
std::uint64_t prove_records(OpenedCheckpoint& source, std::span<const RecordToProve> records,
                            const ReadOptions& locating, const TransferOptions& options);

}  // namespace tessera
