#pragma once
// What tells one checkpoint from another, wherever it lies: our seal, with the checksums of all
// bytes, and without one names, types, shapes, layout and values. (Two saves of one structure and
// equal values are told apart then by what their metadata says alone.)
#include <tessera/ops/open.h>
#include <tessera/storage/checksum.h>

namespace tessera {

/// Of a checkpoint as it was opened: before anything is renamed or located.
Sha256Digest contents_digest(const OpenedCheckpoint& opened);

}  // namespace tessera
