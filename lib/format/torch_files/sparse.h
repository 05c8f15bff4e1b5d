#pragma once
// Sparse tensors made dense: the one kind of stored tensor that is no run of elements.
#include <tessera/base/bytes.h>
#include <tessera/encoding/byte_window.h>
#include <tessera/encoding/torch_archive.h>

#include <cstdint>

namespace tessera {

/// The dense row-major form of archive.tensors[index], a sparse one (coo, csr, csc, bsr, bsc) whose
/// storages are located. Repeated indices of an uncoalesced tensor add up, as to_dense() does.
/// Throws kCorrupt for an index out of range or parts that disagree, kResourceExhausted when the
/// dense form or a part exceeds `memory_limit_bytes`.
Bytes densify(const ByteWindow& window, const TorchArchive& archive, std::uint32_t index,
              std::uint64_t memory_limit_bytes, bool check_crc);

}  // namespace tessera
