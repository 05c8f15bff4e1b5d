#pragma once
// What a seal says of a damaged checkpoint's tensors, for --salvage. A seal has a sum of each MiB
// of a file, and of each tensor where the writer was asked to --verify; a MiB may hold the metadata
// and many tensors. Which of them changed follows from
//
//   one turned bit     its place follows from the CRC-32, which differs for each bit of a MiB
//   sums of tensors    those that agree are whole
//   else               all that lie in the MiB may have changed
//
// Zip archives keep a sum of each record, which their readers check; here, that they are the files
// that were written.
#include <tessera/ops/open.h>
#include <tessera/reshard/tensor_reader.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace tessera {

/// Chunks (indices in Manifest::chunks) whose bytes are not those that were sealed, or may not be,
/// and why. Reads every sealed file. Throws kCorrupt where the metadata may have changed: nothing
/// says then what is where.
std::map<std::uint64_t, std::string> changed_chunks(OpenedCheckpoint& checkpoint,
                                                    const ReadOptions& read,
                                                    const TransferOptions& transfer);

/// The byte of a block whose single turned bit makes the sum `found` of the sum `wanted`; nullopt:
/// more than one bit changed. (Other damage of a whole MiB looks like one bit once in 512 times.)
std::optional<std::uint64_t> turned_byte(std::uint32_t wanted, std::uint32_t found,
                                         std::uint64_t block_bytes);

}  // namespace tessera
