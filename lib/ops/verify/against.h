#pragma once
// verify --against: a checkpoint held against a report made elsewhere, across formats.
#include <tessera/ops/open.h>
#include <tessera/reshard/tensor_reader.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

/// `report`: the JSON of `hash` (tensors and values compared by content), or a
/// tessera.manifest.json (its tensors' hashes, or, without those, its files' sizes and CRCs).
/// Throws kInvalidArgument when the file is neither. Returns how many values could not be compared
/// to the end.
std::uint64_t verify_against(FileSystem& fs, const std::string& report,
                             OpenedCheckpoint& checkpoint, const TransferOptions& transfer,
                             std::vector<Note>& findings);

}  // namespace tessera
