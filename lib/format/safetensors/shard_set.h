#pragma once
// Which files make up a safetensors checkpoint: one file; the shards an index names; or all
// .safetensors files of a folder.
#include <tessera/format/format_driver.h>

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "lib/format/findings.h"

namespace tessera::st {

/// model.safetensors.index.json, as far as we use it.
struct ShardIndex {
  std::string file;
  std::vector<std::pair<std::string, std::uint32_t>>
      weight_map;                   // tensor -> index in `shards`, in file order
  std::vector<std::string> shards;  // sorted, unique, safe relative paths
  std::optional<std::int64_t> total_size;
};

struct ShardSet {
  std::vector<std::string> files;  // those that are there
  std::optional<ShardIndex> index;
};

/// Throws kCorrupt for JSON that is no index, an empty map, or a shard name that leaves the folder.
ShardIndex read_index(const Directory& directory, const std::string& file);

/// Missing shards are findings. Throws kNotFound when the folder holds none, kUnsupported for
/// several indexes.
ShardSet find_shards(const Place& place, Findings& findings);

/// The rank in `shard-<rank>-model-<i>-of-<n>.safetensors` (from 1), or nullopt.
std::optional<std::int64_t> shard_rank(const std::string& file);

}  // namespace tessera::st
