#pragma once
// Checksums of what a load reads. A stored checksum covers a whole record, and ranks of another
// number than those that saved read parts of it, which prove nothing: such records are proved whole
// by one rank each, before any memory of the job changes.
//
//   every rank: records that it reads a part of -> all of them together -> this rank's share -> CRC
#include <tessera/base/rank_group.h>
#include <tessera/ops/open.h>
#include <tessera/reshard/plan.h>
#include <tessera/reshard/tensor_reader.h>
#include <tessera/state/manifest.h>

#include <cstdint>
#include <span>
#include <vector>

namespace tessera {

struct RecordToProve {
  std::uint64_t file = 0;  // index in Manifest::files, the same on all ranks
  std::uint64_t offset = 0, length = 0;
  std::uint32_t tensor = 0;  // one that lies in it
  std::uint64_t chunk = 0;   // of that tensor
};

/// Of what `plan` reads, which is located: records with a checksum that reading does not prove as
/// it goes, or `all` of them. Each once.
std::vector<RecordToProve> records_to_prove(const Manifest& manifest, const Plan& plan, bool all);

/// What falls to this rank of what all ranks give: each record to one rank, balanced by bytes.
/// Collective.
std::vector<RecordToProve> share_of_records(std::vector<RecordToProve> mine, RankGroup& ranks);

/// Reads them; returns how many bytes. Throws kCorrupt, naming tensor and file.
std::uint64_t prove_records(OpenedCheckpoint& source, std::span<const RecordToProve> records,
                            const ReadOptions& locating, const TransferOptions& options);

}  // namespace tessera
