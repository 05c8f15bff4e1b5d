#pragma once
// Copies of one chunk, stored by several ranks: are they equal bit for bit?
//
//   both are all of a record that keeps a CRC-32     their CRCs answer, no byte is read
//   both are the same bytes of one file              they are equal
//   else: in a buffer with other tensors, without    their own ranges are read and hashed
//   a checksum, compressed
#include <tessera/ops/open.h>
#include <tessera/reshard/tensor_reader.h>

#include <cstdint>
#include <span>
#include <vector>

namespace tessera {

struct CopyComparison {
  std::vector<Note> findings;
  std::uint64_t bytes_read = 0;  // of copies
};

/// A finding (CK046) for every copy of a chunk of `tensors` (located) that is not its first copy's
/// equal; CK049 where a copy cannot be read. `read_all`: the CRCs of records are not taken for an
/// answer. Throws what is no damage: a request to stop, lack of memory.
CopyComparison compare_copies(const OpenedCheckpoint& checkpoint,
                              std::span<const std::uint32_t> tensors, bool read_all,
                              const TransferOptions& transfer);

}  // namespace tessera
