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

struct Config {
  std::string backend;
  std::int64_t version = 1;
};

/// nullopt: absent, no small file, or no JSON object with a sharded_backend.
std::optional<Config> read_config(const Directory& directory);

}  // namespace tessera::megatron_dist
