#pragma once
// What an archive says about its own name: torch.save names the records of a zip after the file it
// writes ("rank1/data.pkl" in rank1.pt). A rank's file that carries another one's name was renamed
// or copied, and where files do not say which rank they are, nothing else would show it.
#include "lib/format/findings.h"
#include "lib/format/torch_files/archive_manifest.h"

namespace tessera {

/// Finds files of `builder` whose records are named like the file but for a number (CK067). Names
/// may have been changed for good reasons, so that is a warning, but where it is sure that a file is
/// another's: two files are one and the same archive, and the name inside is that of the other; or
/// each of several carries the name of the next, round in a circle.
void report_renamed(ArchiveManifestBuilder& builder, Findings& findings);

/// Whether all that two archives hold is the same, by their values and the CRC-32s of their storages.
/// False where those have none.
bool is_same_archive(const TorchArchive& a, const TorchArchive& b);

/// Whether two names are alike but for numbers in them, and are not the same.
bool differ_in_numbers(std::string_view a, std::string_view b);

}  // namespace tessera
