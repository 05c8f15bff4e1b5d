#pragma once
// Copies of one chunk, stored by several ranks: are they equal bit for bit?
#include <tessera/ops/open.h>
#include <tessera/reshard/tensor_reader.h>

#include <vector>

namespace tessera {

/// A finding (CK046) for every copy of a chunk of `tensor` (located) that is not its first copy's
/// equal. Throws what reading throws.
std::vector<Note> differing_copies(const OpenedCheckpoint& checkpoint, const StoredTensor& tensor,
                                   const TransferOptions& transfer);

}  // namespace tessera
