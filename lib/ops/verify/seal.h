#pragma once
// What verify says of a seal: which of its files are not as they were written, and, where nothing
// can be opened any more, which of them is why.
#include <tessera/ops/seal.h>
#include <tessera/ops/verify.h>
#include <tessera/storage/file_system.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

using ReadTick = std::function<void(std::size_t bytes)>;  // may throw
/// Whether a tensor is as it was written, by a sum of its own.
using IsWhole = std::function<bool(const std::string& tensor)>;

/// CK043 where the bytes of `name` are not the sealed ones. `manifest` (may be null) says which
/// tensors lie there. Throws what reading throws.
/// `is_whole`: where the seal has sums of tensors, whether one still has its own.
std::optional<Note> check_sealed_file(const Directory& directory, const std::string& name,
                                      const SealedFile& sealed, const Manifest* manifest,
                                      const ReadTick& tick, const IsWhole& is_whole = {});

/// Findings of the seal at `asked` itself (a folder, or a file with its seal next to it), for a
/// checkpoint that cannot be opened or was found in another place: CK044 for a seal that does not
/// fit, CK043 for each file that differs (not at kQuick, which reads no data). Empty where all is
/// as it was written, and where there is no seal.
std::vector<Note> check_seal_of(FileSystem& fs, const std::string& asked, VerifyLevel level,
                                const ReadTick& tick);

/// Throws kCorrupt for `error` (of opening) where its cause is the first of `damage`.
void blame_damage(const std::vector<Note>& damage, const Error& error);

}  // namespace tessera
