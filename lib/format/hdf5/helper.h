#pragma once
// Runs tessera-hdf5 on one file: starts it, serves its reads, collects its report, and takes no
// harm from it. It reads only through `file`, so that every file system works and nothing but this
// file is within its reach.
#include <tessera/base/bytes.h>
#include <tessera/storage/file_system.h>

#include <cstdint>
#include <string>

namespace tessera::h5 {

struct HelperLimits {
  std::uint32_t cpu_seconds = 60;  // at most; 1, and 1 per MiB of the file
  int silence_ms = 60'000;         // without a word from it
};

/// TESSERA_HDF5, else beside the running command, in the libexec folder beside
/// that, or in the one the library was configured for. Throws
/// kUnsupported when it is nowhere.
std::string find_helper();

/// The report's bytes. A child that crashes or lies is kCorrupt, one over its limits
/// kResourceExhausted, what it refuses is as it says.
Bytes describe_file(const std::string& helper, const ReadFile& file,
                    const HelperLimits& limits = {});

}  // namespace tessera::h5
