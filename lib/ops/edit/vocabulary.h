#pragma once
// --vocab-size: which tensors count a vocabulary along dim 0, and their rows made N.
#include <tessera/ops/transform.h>

namespace tessera {

/// `asked` has a vocabulary. `declared`: FQNs that rules name; used unless globs are given.
void apply_vocabulary(OpenedCheckpoint& checkpoint, const Transformations& asked,
                      const std::vector<std::string>& declared, const TransferOptions& transfer,
                      TransformOutcome& out);

/// Whether two tensors of one element hold the same bytes.
SameTensors same_elements(const OpenedCheckpoint& checkpoint, const TransferOptions& transfer);

}  // namespace tessera
