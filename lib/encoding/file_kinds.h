#pragma once
// What a file is that no checkpoint format reads, by its bytes: so that a healthy file of another
// kind is called by its name and not damaged.
#include <tessera/encoding/byte_window.h>

#include <optional>
#include <span>
#include <string>

#include "lib/encoding/safety/zip_members.h"

namespace tessera {

struct FileKind {
  std::string what;  // "a NumPy archive (.npz)"
  std::string hint;  // what to do with it; may be empty
};

/// A zip archive's kind by its members' names; nullopt for one of torch.save, whole or with records
/// missing, and for one whose members cannot be listed.
std::optional<FileKind> other_kind_of_zip(std::span<const ZipMember> members);

/// By the file's first bytes, and for zip archives as other_kind_of_zip; nullopt: of no kind that is
/// known here, or one that a format reads.
std::optional<FileKind> other_kind_of(const ByteWindow& window);

}  // namespace tessera
