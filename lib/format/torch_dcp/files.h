#pragma once
// The data files of a checkpoint: which ones `.metadata` names, which ones lie there.
#include <tessera/format/format_driver.h>

#include <cstdint>
#include <vector>

#include "lib/format/findings.h"
#include "lib/format/torch_dcp/metadata.h"

namespace tessera::dcp {

/// Fills Manifest::files (metadata.files in their order, then the metadata files), world_size and
/// its source. Missing files: CK010, and `missing[i]` is set. Stale ones: CK018. Throws kCorrupt
/// for a relative_path that is no plain file name, whatever `findings` tolerate.
std::vector<bool> check_files(const Place& place, const DcpMetadata& metadata, Manifest& manifest,
                              Findings& findings);

}  // namespace tessera::dcp
