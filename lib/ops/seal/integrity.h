#pragma once
// integrity.json, which Megatron-core may leave beside a checkpoint: SHA-256 of every other file.
//
//   {"algorithm": "sha256", "files": {"__0_0.distcp": "<hex>", ...}}
#include <tessera/state/manifest.h>
#include <tessera/storage/file_system.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

namespace tessera {

inline constexpr std::string_view kIntegrityFile = "integrity.json";
inline constexpr std::uint64_t kCheckedBytes = std::uint64_t{4} << 20;  // read at once

/// Reads every file it lists. Findings: CK096 for a file that is missing or differs, and for one
/// the list does not cover (warning). No integrity.json: none. `tick`: bytes read since the last
/// call; may throw to stop. Throws kCorrupt when integrity.json cannot be parsed.
std::vector<Note> check_integrity(const Directory& directory,
                                  const std::function<void(std::size_t)>& tick);

}  // namespace tessera
