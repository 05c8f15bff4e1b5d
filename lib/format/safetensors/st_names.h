#pragma once
// Names that the safetensors format and its dialects give things, and the codes of what its reader
// finds.
#include <string_view>

namespace tessera::st {

inline constexpr std::string_view kSuffix = ".safetensors";
inline constexpr std::string_view kIndexSuffix = ".safetensors.index.json";

// Keys of __metadata__.
inline constexpr std::string_view kShardingInfo =
    "DCP_SHARDING_INFO";  // PyTorch's Hugging Face writer
inline constexpr std::string_view kDcpVersion = "DCP_VERSION";
inline constexpr std::string_view kValues = "tessera.values";  // ours: name -> tagged JSON
inline constexpr std::string_view kState =
    "tessera.state";  // ours: paths, order and kinds of containers
/// __metadata__ strings in Manifest::provenance carry this prefix.
inline constexpr std::string_view kProvenancePrefix = "__metadata__.";

// Findings; the numbers below CK030 are shared with the other formats.
inline constexpr std::string_view kMissingFile = "CK010";  // a shard is absent
inline constexpr std::string_view kShortFile = "CK011";    // a shard ends before its last tensor
inline constexpr std::string_view kHole = "CK012";  // elements of a tensor that no shard holds
inline constexpr std::string_view kOverlap =
    "CK013";  // two pieces of a tensor overlap without being equal
inline constexpr std::string_view kStaleFile =
    "CK018";  // a file or folder that the index does not name (warning)
inline constexpr std::string_view kTrailingBytes = "CK023";  // bytes after the last tensor
inline constexpr std::string_view kLost = "CK024";  // what a missing or empty file took along
inline constexpr std::string_view kNoIndex =
    "CK036";  // shards numbered as a set, but no index lists them
inline constexpr std::string_view kMissingKey =
    "CK030";  // the index names a tensor that its shard lacks
inline constexpr std::string_view kUnlistedKey =
    "CK031";  // a shard holds a tensor that the index lacks (warning)
inline constexpr std::string_view kTotalSize = "CK032";  // the index' total_size differs (info)
inline constexpr std::string_view kStaleCopy =
    "CK033";  // a copy in another shard than the index names (warning)

}  // namespace tessera::st
