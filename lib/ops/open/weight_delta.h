#pragma once
// A folder of weight deltas as the whole weights: the base, and over it every delta up to this one.
//
//   base/            weight_v000001/      weight_v000002/        version 000002 =
//   the weights      against 000000       against 000001         base + delta 1 + delta 2
//
// Deltas between lie beside, named as the folder is but for the version. Tensors that no delta
// changed are read in the base; the others are made when they are first read, one at a time, and
// held against the checksum of every delta on the way.
#include <tessera/ops/open.h>

#include <memory>
#include <string>

namespace tessera {

/// nullptr: `folder` has no deltas. `asked`: options for the base, with what --base says. Throws
/// kUnsupported where the base is needed and not given or of a kind that is not read here, kCorrupt
/// for a chain with a version missing.
std::unique_ptr<OpenedCheckpoint> open_weight_delta(FileSystem& fs, const std::string& folder,
                                                    const Directory& directory,
                                                    const OpenOptions& asked);

}  // namespace tessera
