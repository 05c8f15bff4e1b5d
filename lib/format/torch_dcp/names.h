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

/// R of "__R_N.distcp", nullopt for any other name.
std::optional<std::int64_t> rank_of_data_file(std::string_view name);
/// R of "__R.metadata".
std::optional<std::int64_t> rank_of_metadata_file(std::string_view name);
/// "__R_0.distcp".
std::string data_file_name(std::int64_t rank);

}  // namespace tessera::dcp
