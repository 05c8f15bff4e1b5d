#pragma once
// accelerate's FSDP1 with LOCAL_STATE_DICT: one state as rank files and a torch-dcp folder.
//
//   pytorch_model_fsdp_rank<R>.bin      the model's state dict on rank R; _N_rank<R> of model N
//   optimizer_N/                        {"optimizer": ...}
#include <tessera/format/format_driver.h>

#include <string>

#include "lib/state/merge_parts.h"

namespace tessera {

/// The optimizer's folder beside the rank files of one model; "" where `parent` does not hold
/// exactly one such pair.
std::string find_optimizer_folder(const Directory& parent);

/// True when the rank files hold a model alone, and the folder an optimizer alone.
bool are_model_and_optimizer(const Manifest& model, const Manifest& optimizer);

/// The rank files as that part: below "model", as the folders of other state dicts have it.
void become_model(PartManifest& part);

/// What reads an optimizer's folder. Named here, and not asked of the registry, since this is not
/// one format among several: accelerate saves the optimizer with torch.distributed.checkpoint.
const FormatDriver& optimizer_folder_driver();

/// torch-rank-files, but for tensors in folders below, which optimizer_folder_driver() reads.
const FormatDriver& rank_files_with_optimizer_driver();

}  // namespace tessera
