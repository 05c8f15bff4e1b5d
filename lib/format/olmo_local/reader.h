#pragma once
// The reader of OLMo's local checkpoints: files of ranks in folders model, optim and train ->
// Manifest.
#include <tessera/format/format_driver.h>

#include <string_view>

namespace tessera::olmo_local {

inline constexpr std::string_view kModel = "model", kOptim = "optim", kTrain = "train";
inline constexpr std::string_view kFirstModelFile = "model/rank0.pt";

Manifest read_manifest(const Place& place, const ReadOptions& options);

}  // namespace tessera::olmo_local
