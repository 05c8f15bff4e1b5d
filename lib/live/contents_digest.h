#pragma once
// What tells one checkpoint from another, wherever it lies: names, types, shapes, layout, values
// and, where there is our seal, the checksums of all bytes in it. (Without a seal, two saves of one
// structure and equal values are told apart by what their metadata says alone.)
#include <tessera/ops/open.h>
#include <tessera/storage/checksum.h>

namespace tessera {

/// Of a checkpoint as it was opened: before anything is renamed or located.
Sha256Digest contents_digest(const OpenedCheckpoint& opened);

}  // namespace tessera
