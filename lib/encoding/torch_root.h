#pragma once
#include <tessera/encoding/pickle_reader.h>
#include <tessera/encoding/torch_archive.h>

#include "lib/encoding/torch_tensors.h"

namespace tessera {

/// Decodes the graph's root into archive.root. A root of an unknown class is kUnsupported, unless
/// the options allow it.
void decode_archive_root(const PickleGraph& graph, TensorResolver& resolver,
                         const ArchiveOptions& options, TorchArchive& archive);

}  // namespace tessera
