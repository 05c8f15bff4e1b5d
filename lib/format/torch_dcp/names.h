#pragma once
// Names that stand in DCP metadata, shared by reader and writer.
//
//   release    metadata classes       TensorProperties         new attribute
//   1.13       _shard.checkpoint.*    _shard.sharded_tensor    -
//   2.0 - 2.2  checkpoint.*           _shard.sharded_tensor    planner_data
//   2.3        the same               checkpoint.metadata      -
//   2.4 - 2.9  the same               the same                 storage_meta
//   2.10 on    the same               the same                 version
//
// Modules stand below torch.distributed.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::dcp {

inline constexpr std::string_view kMetadataFile = ".metadata";
inline constexpr std::string_view kDataSuffix = ".distcp";
inline constexpr std::string_view kRankMetadataSuffix = ".metadata";  // "__3.metadata"

inline constexpr std::string_view kMetadataModule = "torch.distributed.checkpoint.metadata";
inline constexpr std::string_view kMetadataModule113 =
    "torch.distributed._shard.checkpoint.metadata";
inline constexpr std::string_view kShardedTensorModule =
    "torch.distributed._shard.sharded_tensor.metadata";
inline constexpr std::string_view kFilesystemModule = "torch.distributed.checkpoint.filesystem";
inline constexpr std::string_view kFilesystemModule113 =
    "torch.distributed._shard.checkpoint.filesystem";

/// Where Megatron-core kept its subclass of Metadata.
inline constexpr std::string_view kMegatronModule =
    "megatron.core.dist_checkpointing.strategies.torch";

/// Codes of findings. Stable: scripts match them.
///
///   CK010  a data file that .metadata names is missing (or no regular file)
///   CK011  a data file ends before the end of an item
///   CK012  coverage hole: elements of a tensor that no chunk holds
///   CK013  two chunks of a tensor overlap without being equal
///   CK014  a chunk leaves its tensor
///   CK015  a chunk, or a value, without an entry in storage_data
///   CK016  an entry of storage_data that no chunk or value needs               (warning)
///   CK017  ranks stored different values under one name; the lowest rank's is used (warning)
///   CK018  a data file that .metadata does not name: left from another save    (warning)
///   CK019  an item cannot be read: what lies there is not what .metadata says
///   CK020  an attribute of .metadata that this version does not know           (info)
///   CK021  several ranks stored one chunk; the lowest rank's is used           (info)
///   CK022  a value whose item is no torch archive: kept as raw bytes            (info)
///   CK023  bytes after the last item of a data file                     (warning when only read)
///   CK024  lost: the value lies in a missing file
namespace codes {
inline constexpr std::string_view kMissingFile = "CK010";
inline constexpr std::string_view kShortFile = "CK011";
inline constexpr std::string_view kHole = "CK012";
inline constexpr std::string_view kOverlap = "CK013";
inline constexpr std::string_view kOutOfBounds = "CK014";
inline constexpr std::string_view kChunkWithoutData = "CK015";
inline constexpr std::string_view kUnusedData = "CK016";
inline constexpr std::string_view kDifferentValues = "CK017";
inline constexpr std::string_view kStaleFile = "CK018";
inline constexpr std::string_view kBadItem = "CK019";
inline constexpr std::string_view kUnknownAttribute = "CK020";
inline constexpr std::string_view kReplicas = "CK021";
inline constexpr std::string_view kRawValue = "CK022";
inline constexpr std::string_view kTrailingBytes = "CK023";
inline constexpr std::string_view kLost = "CK024";
}  // namespace codes

/// R of "__R_N.distcp", nullopt for any other name.
std::optional<std::int64_t> rank_of_data_file(std::string_view name);
/// R of "__R.metadata".
std::optional<std::int64_t> rank_of_metadata_file(std::string_view name);
/// "__R_0.distcp".
std::string data_file_name(std::int64_t rank);

}  // namespace tessera::dcp
