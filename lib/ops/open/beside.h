#pragma once
// What lies beside a checkpoint and belongs to the same training state: found by names, and folders
// by what a format recognises. Nothing of it is read.
//
//   optimizer   files and folders called optim..., and DeepSpeed's global_step<N> that no pointer
//               names
//   weights     of another kind than those that were chosen: a model beside an adapter, the base
//               of an adapter, accelerate's pytorch_model_fsdp_<N>
//   sidecars    scheduler, random numbers, trainer, data loader, Lightning's meta.pt, the same
//               weights in another file format; other adapters of the model, in folders of theirs
//
// Checkpoints of other steps below a folder (checkpoint-500/) are none of this: they are whole
// states of their own.
#include <tessera/ops/open.h>

#include <string>
#include <string_view>
#include <vector>

#include "lib/ops/open/path_resolve.h"

namespace tessera {

/// Sets `beside` and what belongs to it, once the manifest says which files the checkpoint has.
void find_beside(FileSystem& fs, const PathResolver& resolver, const FoundCheckpoint& found,
                 OpenedCheckpoint& opened);

/// "scheduler.bin", "random_states_0.pkl", "meta.pt": what a trainer keeps beside a checkpoint.
bool is_sidecar_name(std::string_view name);

/// "optimizer.pt (optimizer state, 1.2 MB), scheduler.pt (...) and 3 more".
std::string beside_text(const std::vector<Beside>& beside);

/// Throws kUnsupported where an optimizer or other weights lie beside it.
void refuse_beside(const OpenedCheckpoint& opened);

}  // namespace tessera
