#pragma once
// The reader of torch-dcp: `.metadata` and data files to a Manifest, and pending sources to
// extents. Free functions, so that formats built on DCP (Megatron's torch_dist) can use them.
#include <tessera/format/format_driver.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lib/format/torch_dcp/metadata.h"

namespace tessera::dcp {

/// `.metadata`, or the merged `__R.metadata` of a rank-local save. Throws kCorrupt "incomplete:
/// ..." when there are data files alone.
DcpMetadata read_metadata(const Place& place, bool list_globals = false);

/// Everything but the inside of tensor items. See FormatDriver::manifest.
Manifest read_manifest(const Place& place, const ReadOptions& options);

/// See FormatDriver::locate. Idempotent. With options.tolerate_damage an item that cannot be read
/// becomes a Note (CK019) and its chunk stays kPending.
void locate_chunks(const Place& place, Manifest& manifest, std::span<const std::uint32_t> tensors,
                   const ReadOptions& options);

}  // namespace tessera::dcp
