#pragma once
// metadata.json: which backend wrote the folder. It is written last, so that it also says that the
// save was finished.
#include <tessera/storage/file_system.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::megatron_dist {

inline constexpr std::string_view kConfigFile = "metadata.json";
inline constexpr std::string_view kCommonFile = "common.pt";
/// From core 0.19 on the common state is an object among the others.
inline constexpr std::string_view kCommonObject = "common_state/shard_0_1";
inline constexpr std::string_view kTorchDist = "torch_dist";
inline constexpr std::string_view kZarr = "zarr";

/// Codes of findings beside those of torch-dcp.
///   CK010  a chunk file or the header of a zarr array is missing, or is a link
///   CK090  metadata.json is absent: the save was interrupted
///   CK091  buckets of the distributed optimizer are kept as they are   (info)
///   CK092  two raw bytes are read as bfloat16                          (info)
namespace codes {
inline constexpr std::string_view kMissingChunk = "CK010";
inline constexpr std::string_view kUnfinished = "CK090";
}  // namespace codes

struct Config {
  std::string backend;
  std::int64_t version = 1;
};

/// nullopt: absent, no small file, or no JSON object with a sharded_backend.
std::optional<Config> read_config(const Directory& directory);

}  // namespace tessera::megatron_dist
