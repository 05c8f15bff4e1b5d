#pragma once
// Messages between processes that write one output together, sent once every tensor byte is
// written: checksums, so that the process that finishes a file can render what depends on them, and
// what is finished.
#include <tessera/base/bytes.h>
#include <tessera/reshard/executor.h>
#include <tessera/storage/checksum.h>

#include <cstdint>
#include <vector>

#include "lib/reshard/source_choice.h"

namespace tessera {

/// Before files are finished: of files that several processes write, and of records that several
/// read.
struct PeerSums {
  struct SegmentCrc {
    std::uint64_t segment = 0;
    std::uint64_t crc = 0;
  };
  struct FileCrc {
    std::uint64_t file = 0;
    CrcRun run;  // of the file
  };
  std::vector<SegmentCrc> segments;
  std::vector<std::uint64_t> written;  // literal and deferred segments
  std::vector<FileCrc> files;
  std::vector<RecordProver::ReadPart> reads;

  Bytes encode() const;
  static PeerSums decode(ByteView bytes);
};

/// After: everything that rank 0 reports and seals. `files`: those whose sums are meant.
Bytes encode_result(const TransferResult& result, const std::vector<std::uint32_t>& files);
/// Adds a peer's to `result`, whose crc32_per_mib has one entry per file of the output.
void add_result(ByteView bytes, TransferResult& result);

}  // namespace tessera
