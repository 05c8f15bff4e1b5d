#pragma once
// Names that HDF5 checkpoints use.
#include <string_view>

namespace tessera::h5 {

inline constexpr std::string_view kSignature = "\x89HDF\r\n\x1a\n";

// Files of our own writing (docs/formats/hdf5.md).
inline constexpr std::string_view kVersionAttribute = "tessera.version";  // of the root group
inline constexpr std::string_view kStateDataset = "tessera.state";        // JSON, in the root group
inline constexpr std::string_view kDefaultFile = "checkpoint.h5";         // in a folder

}  // namespace tessera::h5
