#pragma once
// What the fuzz targets of whole formats share: a checkpoint in memory, read as every verb reads
// it.
#include <tessera/base/error.h>
#include <tessera/format/format_driver.h>
#include <tessera/storage/memory_file_system.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <vector>

namespace tessera::fuzz {

/// Manifest and places of everything in `folder`, with damage tolerated and without. Any
/// tessera::Error is an answer but an internal one.
inline void read_checkpoint(const FormatDriver& driver, const MemoryFileSystem& fs,
                            const char* folder) {
  const auto directory = fs.open_directory(folder);
  const Place place{directory.get(), "", "fuzz"};
  for (const bool tolerate : {true, false}) {
    ReadOptions options;
    options.memory_limit_bytes = 1 << 22;
    options.tolerate_damage = options.guess_index = tolerate;
    try {
      Manifest manifest = driver.manifest(place, options);
      std::vector<std::uint32_t> all(manifest.tensors.size());
      std::iota(all.begin(), all.end(), 0u);
      driver.locate(place, manifest, all, options);
    } catch (const Error& error) {
      if (error.code() == Code::kInternal) std::abort();
    }
  }
}

}  // namespace tessera::fuzz
