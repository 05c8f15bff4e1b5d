#pragma once
// A digest that identifies the content of a checkpoint, wherever it lies: our seal, with the
// checksums of all bytes; without a seal, names, types, shapes, layout and values. (Without a seal,
// two saves of one structure with equal values differ only if their metadata do.)
#include <tessera/ops/open.h>
#include <tessera/storage/checksum.h>

namespace tessera {

/// `opened`: a checkpoint as it was opened, before anything is renamed or located.
Sha256Digest contents_digest(const OpenedCheckpoint& opened);

}  // namespace tessera
