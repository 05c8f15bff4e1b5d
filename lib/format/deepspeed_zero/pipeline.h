#pragma once
// A pipeline: each stage (mp_rank_<M>) is a ZeRO checkpoint of its own layers, and files of layers
// hold the module. Stages are joined by the names of their parameters, which count layers over all
// of them. Without tensor parallelism alone.
#include "lib/format/deepspeed_zero/checkpoint.h"

namespace tessera::deepspeed {

/// `folder`: all files. Precondition: is_plain_pipeline(folder).
Manifest read_pipeline(ZeroFiles& files, const Folder& folder);

}  // namespace tessera::deepspeed
