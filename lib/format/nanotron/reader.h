#pragma once
// The reader of nanotron: files of parameters and ranks -> Manifest.
#include <tessera/format/format_driver.h>

#include <string_view>

namespace tessera::nanotron {

inline constexpr std::string_view kMetadataFile = "checkpoint_metadata.json";
inline constexpr std::string_view kModelFolder = "model";

Manifest read_manifest(const Place& place, const ReadOptions& options);

}  // namespace tessera::nanotron
