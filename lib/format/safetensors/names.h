#pragma once
// Names that the safetensors format and its dialects give things, and the codes of what its reader
// finds.
#include <string_view>

#include "lib/format/shard_index.h"

namespace tessera::st {

inline constexpr std::string_view kSuffix = ".safetensors";
inline constexpr std::string_view kIndexSuffix = ".safetensors.index.json";
inline constexpr ShardNaming kNaming = {kSuffix, kIndexSuffix};

// Keys of __metadata__.
inline constexpr std::string_view kShardingInfo =
    "DCP_SHARDING_INFO";  // PyTorch's Hugging Face writer
inline constexpr std::string_view kDcpVersion = "DCP_VERSION";
inline constexpr std::string_view kValues = "tessera.values";  // ours: name -> tagged JSON
inline constexpr std::string_view kState =
    "tessera.state";  // ours: paths, order and kinds of containers
/// __metadata__ strings in Manifest::provenance carry this prefix.
inline constexpr std::string_view kProvenancePrefix = "__metadata__.";

// Findings, beside those of every kind of shards (lib/format/shard_index.h).
inline constexpr std::string_view kShortFile = "CK011";  // a shard ends before its last tensor
inline constexpr std::string_view kHole = "CK012";       // elements of a tensor that no shard holds
inline constexpr std::string_view kOverlap =
    "CK013";  // two pieces of a tensor overlap without being equal
inline constexpr std::string_view kTrailingBytes = "CK023";  // bytes after the last tensor

}  // namespace tessera::st
