#pragma once
// torch-rank-files: one torch.save file per rank: FSDP1's local, sharded and full state dicts,
// accelerate's and verl's rank files, any state of DTensors or ShardedTensors. Stateless;
// thread-safe. docs/formats/torch-rank-files.md has the forms.
#include <tessera/format/format_driver.h>

namespace tessera {

const FormatDriver& torch_rank_files_driver();

}  // namespace tessera
