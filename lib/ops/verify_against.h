#pragma once
// verify --against: a checkpoint held against a report made elsewhere, across formats.
#include <tessera/ops/open.h>
#include <tessera/reshard/tensor_reader.h>

#include <string>
#include <vector>

namespace tessera {

/// `report`: the JSON of `hash` (tensors compared by content), or a tessera.manifest.json (its
/// tensors' hashes, or, without those, its files' sizes and CRCs). Throws kInvalidArgument when the
/// file is neither.
void verify_against(FileSystem& fs, const std::string& report, OpenedCheckpoint& checkpoint,
                    const TransferOptions& transfer, std::vector<Note>& findings);

}  // namespace tessera
