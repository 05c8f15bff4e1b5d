#pragma once
// Which files make up a safetensors checkpoint: one file; the shards an index names; or all
// .safetensors files of a folder.
#include <tessera/encoding/safetensors_header.h>
#include <tessera/format/format_driver.h>

#include <cstdint>
#include <optional>
#include <string>

#include "lib/format/shard_index.h"

namespace tessera::st {

/// Missing shards are findings. Throws kNotFound when the folder holds none, kUnsupported for
/// several indexes.
ShardSet find_shards(const Place& place, const ReadOptions& options, Findings& findings);

/// The rank in `shard-<rank>-model-<i>-of-<n>.safetensors` (from 1), or nullopt.
std::optional<std::int64_t> shard_rank(const std::string& file);

/// Whether a file is of nanotron, which keeps one tensor "data" in each: its name is the folder.
bool is_nanotron_part(const SafetensorsHeader& header);

}  // namespace tessera::st
