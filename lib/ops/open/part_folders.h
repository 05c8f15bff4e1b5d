#pragma once
// One state saved as several folders below one parent, as accelerate does: pytorch_model_fsdp_N
// holds {"model": ...}, optimizer_N holds {"optimizer": ...}, both torch-dcp; or the model as rank
// files (lib/ops/open/rank_parts.h).
#include <tessera/storage/file_system.h>

#include <string>
#include <string_view>
#include <vector>

namespace tessera {

inline constexpr std::string_view kOptimizerFolder = "optimizer_";  // accelerate's, before its N

/// Names of the two folders, model first; empty when `parent` does not hold exactly one such pair.
std::vector<std::string> find_part_folders(const Directory& parent);

}  // namespace tessera
