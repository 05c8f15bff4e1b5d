#pragma once
// What an archive says about its own name: torch.save names the records of a zip after the file it
// writes ("rank1/data.pkl" in rank1.pt). A rank's file that carries another one's name was renamed
// or copied, and where files do not say which rank they are, nothing else would show it.
#include "lib/format/torch_files/archive_manifest.h"

namespace tessera {

/// Adds one warning (CK067) for files of `builder` whose records are named like the file but for a
/// number.
void note_renamed(ArchiveManifestBuilder& builder);

/// Whether two names are alike but for numbers in them, and are not the same.
bool differ_in_numbers(std::string_view a, std::string_view b);

}  // namespace tessera
