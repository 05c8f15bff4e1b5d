#pragma once
// Salvage: what can still be read of a damaged checkpoint. Every chunk is tried; a damaged one is
// replaced by a whole replica where there is one; a tensor that is not whole after that is left out
// and reported. Never part of a tensor.
#include <tessera/ops/convert.h>
#include <tessera/ops/open.h>
#include <tessera/reshard/tensor_reader.h>

#include <vector>

namespace tessera {

/// Locates and reads everything; afterwards the manifest holds whole tensors only. Cost: one pass
/// over the source.
std::vector<LostTensor> salvage(OpenedCheckpoint& source, const ReadOptions& read,
                                const TransferOptions& transfer);

}  // namespace tessera
