#pragma once
// One state saved as several folders below one parent, as accelerate does: pytorch_model_fsdp_N
// holds {"model": ...}, optimizer_N holds {"optimizer": ...}, both torch-dcp; or the model as rank
// files (lib/ops/open/rank_parts.h).
#include <tessera/state/manifest.h>
#include <tessera/storage/file_system.h>

#include <string>
#include <string_view>
#include <vector>

namespace tessera {

inline constexpr std::string_view kOptimizerFolder = "optimizer_";  // accelerate's, before its N

/// Names of the folders, by their numbers, each model before its optimizer; empty where one lacks its
/// other half, or there is none.
std::vector<std::string> find_part_folders(const Directory& parent);

/// Where there are several models or optimizers, those of the first folder are "model" and "optimizer", the others
/// get their folder's number: "model_1".
void number_root(Manifest& part, const std::string& folder, const std::string& first);

}  // namespace tessera
