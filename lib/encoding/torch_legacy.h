#pragma once
// The container of torch.save before 1.6: five pickles in a row, then every storage as an element
// count and its bytes.
//
//   magic | 1001 | system | object | storage keys | (int64 count | bytes) per key
//
// The bytes are little-endian whatever the system record says: PyTorch converts them when it
// writes.
#include <tessera/encoding/torch_archive.h>

namespace tessera {

/// The magic number's bytes stand at the front.
bool looks_like_legacy_archive(ByteView head);
TorchArchive open_legacy_archive(const ByteWindow& window, const ArchiveOptions& options);

}  // namespace tessera
