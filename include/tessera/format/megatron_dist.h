#pragma once
// megatron-dist: distributed checkpoints of Megatron-core (dist_checkpointing), backends torch_dist
// and zarr. See docs/formats/megatron-dist.md.
#include <tessera/format/format_driver.h>

namespace tessera {

/// The driver; stateless, lives as long as the program.
const FormatDriver& megatron_dist_driver();

}  // namespace tessera
