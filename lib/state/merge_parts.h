#pragma once
// One state saved as several parts: manifests of each, joined to one of the whole.
#include <tessera/state/manifest.h>

#include <string>
#include <vector>

namespace tessera {

struct PartManifest {
  std::string folder;  // relative to the whole's; "" = the whole's own files
  Manifest manifest;   // nothing located yet
  std::string key;     // where its root stands in the whole; "" = its top is the whole's
};

/// The parts as one manifest, described as the first is: files get the folder's name before theirs,
/// indices move. Names that two parts share stay doubled: whoever opens refuses them. Pure.
Manifest merge_parts(std::vector<PartManifest> parts);

}  // namespace tessera
