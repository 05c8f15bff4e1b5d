#pragma once
// Copies of one chunk that several ranks stored. Listing takes them for one where checksums agree,
// or, without those, where the blocks agree that it looks at; who reads elements has to know.
#include <tessera/state/manifest.h>
#include <tessera/storage/file_system.h>

#include <cstdint>
#include <span>

namespace tessera {

/// Compares all copies of the tensors' chunks, which are located, but for those that checksums of
/// their records prove. Throws kUnsupported naming two files that differ.
void require_equal_copies(const Directory& directory, const Manifest& manifest,
                          std::span<const std::uint32_t> tensors);

}  // namespace tessera
