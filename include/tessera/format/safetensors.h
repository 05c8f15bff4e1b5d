#pragma once
// safetensors: one file, Hugging Face shards with or without an index, and the rank files of
// PyTorch's Hugging Face storage writer. Stateless; thread-safe. docs/formats/safetensors.md has
// the bytes.
#include <tessera/format/format_driver.h>

namespace tessera {

const FormatDriver& safetensors_driver();

/// The one index of shards in a folder, "" when there is none. Throws kUnsupported for several.
std::string find_shard_index(const Directory& directory);
/// What an index says. Throws kCorrupt where it is none, or names files that are no safetensors
/// files of its folder.
ShardNames read_shard_names(const Directory& directory, const std::string& index);

}  // namespace tessera
