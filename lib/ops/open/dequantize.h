#pragma once
// Quantized weights as plain ones: an edit of the manifest, after which every reader and writer sees
// the numbers that codes and scales mean. Only small parts (shapes, tables of groups) are read.
#include <tessera/ops/open.h>
#include <tessera/reshard/tensor_reader.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

/// Remarks on codes that have no scale (CK062). Reads config.json alone, and that only where some
/// tensor may be codes.
std::vector<Note> lone_codes(const Manifest& manifest, const Directory& directory);

struct Dequantized {
  std::string detail;                // each scheme with its number of weights
  std::uint64_t tensors = 0;         // weights that became plain
  std::vector<std::string> changes;  // one per weight
  std::vector<Note> notes;
};

/// The weights become `dtype`, rounded once from float32, and stand where their codes stood; their
/// other parts leave the state. Throws kUnsupported where a quantized weight is not understood or
/// has no scale, kInvalidArgument where there is none.
Dequantized dequantize(OpenedCheckpoint& checkpoint, DType dtype, const TransferOptions& transfer);

/// The same for those who look only, in float32: what is not understood stays as it is, with a note.
std::vector<Note> view_dequantized(OpenedCheckpoint& checkpoint, const TransferOptions& transfer);

}  // namespace tessera
