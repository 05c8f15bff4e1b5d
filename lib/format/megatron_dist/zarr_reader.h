#pragma once
// The zarr backend (Megatron-core up to 0.12): one zarr v2 array per key, chunks as the ranks held
// them, and one torch.save file per sharded object.
//
//   <key>/.zarray            JSON: shape, chunks, dtype, order C, compressor null
//   <key>/0.1                chunk (0, 1), raw row-major; at an edge as large as any other
//   <key>/shard_0_2.pt       object of rank 0 of 2
#include <tessera/format/format_driver.h>

namespace tessera::megatron_dist {

/// Everything but the common state. Throws kCorrupt, kUnsupported naming array and feature.
Manifest read_zarr(const Place& place, const ReadOptions& options);

}  // namespace tessera::megatron_dist
