#pragma once
// Names that HDF5 checkpoints use, and the codes of what their reader finds.
#include <string_view>

namespace tessera::h5 {

inline constexpr std::string_view kSignature = "\x89HDF\r\n\x1a\n";

// Files of our own writing (docs/formats/hdf5.md).
inline constexpr std::string_view kVersionAttribute = "tessera.version";  // of the root group
inline constexpr std::string_view kStateDataset = "tessera.state";        // JSON, in the root group
inline constexpr std::string_view kDefaultFile = "checkpoint.h5";         // in a folder

inline constexpr std::string_view kMissingFile = "CK010";    // a shard of Keras weights
inline constexpr std::string_view kNotInShard = "CK030";     // what the index places in a shard
inline constexpr std::string_view kTrailingBytes = "CK023";  // behind the end of the file it states
inline constexpr std::string_view kExternalLink = "CK080";   // not followed
inline constexpr std::string_view kOtherName = "CK081";      // soft links and second names
inline constexpr std::string_view kNoValue = "CK082";        // an attribute without a form here
inline constexpr std::string_view kUnreadable = "CK083";     // a dataset that cannot be read
inline constexpr std::string_view kUnknownHere = "CK084";    // one of a type or filter we lack

}  // namespace tessera::h5
