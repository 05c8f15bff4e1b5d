#pragma once
// Salvage: what can still be read of a damaged checkpoint. Every chunk is tried; a damaged one is
// replaced by a whole replica where there is one; a tensor that is not whole after that is left out
// and reported. Never part of a tensor.
#include <tessera/ops/convert.h>
#include <tessera/ops/open.h>
#include <tessera/reshard/tensor_reader.h>

#include <vector>

namespace tessera {

struct SalvageLoss {
  std::vector<LostTensor> entries;  // of the state
  std::vector<LostTensor> files;    // of which nothing else says what they held; by their paths
};

/// Locates and reads everything; afterwards the manifest holds whole tensors only. Cost: one pass
/// over the source. Throws kCorrupt where nothing is whole.
SalvageLoss salvage(OpenedCheckpoint& source, const ReadOptions& read,
                    const TransferOptions& transfer);

}  // namespace tessera
