#pragma once
// Names that the safetensors format and its dialects give things.
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
inline constexpr std::string_view kDeltaFile =
    "tessera.delta";  // ours: in each file of a delta, its version
/// In metadata of a delta's index: what only ours say (DeltaRest).
inline constexpr std::string_view kDeltaRest = "tessera";
/// __metadata__ strings in Manifest::provenance carry this prefix.
inline constexpr std::string_view kProvenancePrefix = "__metadata__.";

}  // namespace tessera::st
