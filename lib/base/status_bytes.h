#pragma once
// A Status as bytes, for the border between ranks: code, rank, then five strings with their
// lengths.
#include <tessera/base/error.h>

#include <cstddef>
#include <span>
#include <vector>

namespace tessera {

std::vector<std::byte> status_to_bytes(const Status& status);

/// Throws kCorrupt where the bytes are no Status.
Status status_from_bytes(std::span<const std::byte> bytes);

}  // namespace tessera
