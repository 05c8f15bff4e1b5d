#pragma once
// One state saved as several parts below one parent, as accelerate does: pytorch_model_fsdp_N holds
// {"model": ...}, optimizer_N holds {"optimizer": ...}, both torch-dcp; or the model as rank files
// (lib/ops/open/rank_parts.h).
#include <tessera/state/manifest.h>
#include <tessera/storage/file_system.h>

#include <string>
#include <string_view>
#include <vector>

namespace tessera {

inline constexpr std::string_view kOptimizerFolder = "optimizer_";  // accelerate's, before its N

/// Names of the two folders, model first; empty when `parent` does not hold exactly one such pair.
std::vector<std::string> find_part_folders(const Directory& parent);

struct PartManifest {
  std::string folder;  // relative to the parent; "" = the parent's own files
  Manifest manifest;   // nothing located yet; after the first part: torch-dcp
  std::string key;     // where its root stands in the whole; "" = its top is the whole's
};

/// The parts as one manifest of the parent: files get the folder's name before theirs, indices
/// move. Names that two parts share stay doubled: whoever opens refuses them. Pure.
Manifest merge_parts(std::vector<PartManifest> parts);

}  // namespace tessera
