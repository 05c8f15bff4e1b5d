#pragma once
// A folder of weight deltas as the whole weights: the base, and over it every delta up to this one.
//
//   base/            weight_v000001/      weight_v000002/        version 000002 =
//   the weights      against 000000       against 000001         base + delta 1 + delta 2
//
// Deltas between lie beside, named as the folder is but for the version. Tensors that no delta
// changed are read in the base, which may be of any format; the others are made when they are first
// read, one at a time, and held against the checksum of every delta on the way. Deltas of ours have
// checksums of unchanged tensors as well, whole tensors, and the state around them (DeltaRest).
#include <tessera/format/safetensors.h>
#include <tessera/ops/open.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// One folder of deltas.
struct DeltaLink {
  std::string folder;
  std::unique_ptr<Directory> directory;
  DeltaIndex index;
};

/// A note that nothing at `path` begins from what --base names; `why`: "has whole weights".
Note base_unused(std::string_view path, std::string_view why);
bool is_base_unused(const Note& note);

/// nullptr: `folder` has no deltas. `asked`: options for the base, with what --base says. Throws
/// kUnsupported where the base is needed and not given, kCorrupt for a chain with a version missing.
std::unique_ptr<OpenedCheckpoint> open_weight_delta(FileSystem& fs, const std::string& folder,
                                                    const Directory& directory,
                                                    const OpenOptions& asked);

/// The weights that deltas, the oldest first, make of `base`, whatever version that is. `base` is
/// located.
std::unique_ptr<OpenedCheckpoint> apply_weight_deltas(OpenedCheckpoint base,
                                                      std::vector<DeltaLink> deltas,
                                                      const ReadOptions& read);

/// The version that the index of a safetensors folder gives; "": none.
std::string weight_version(FileSystem& fs, const OpenedCheckpoint& opened);

}  // namespace tessera
