#pragma once
// Conversions of the real samples inside a memory file system: quick, and faults can be put under
// them.
#include <tessera/ops/convert.h>
#include <tessera/ops/hash.h>
#include <tessera/storage/memory_file_system.h>

#include <map>
#include <span>
#include <string>
#include <vector>

namespace tessera::testing {

/// Copies sample_checkpoints/<name>/checkpoint to /source of `fs`. Returns the path to open (the
/// file, if it is a single one).
std::string load_sample(MemoryFileSystem& fs, const std::string& name);

struct OpenedContent {
  std::map<std::string, std::string> tensors;  // as content_of
  std::map<std::string, std::string> values;   // as values_of
  std::vector<std::string> chunks;             // as chunk_set
};
/// What a reader finds at `path`.
OpenedContent content_at(FileSystem& fs, const std::string& path);

/// Every byte below `path`, but for our seal (it names its source).
std::map<std::string, std::string> bytes_below(const MemoryFileSystem& fs, const std::string& path);

ConvertOptions convert_options(const std::string& from, const std::string& to,
                               std::optional<std::int64_t> world_size,
                               const std::string& format = "");

/// How the conversion ends.
Status status_of(FileSystem& fs, const ConvertOptions& options);

/// What `ckpt-inspect hash --format json` says of them, as far as verify's --against reads it.
std::string hash_report(std::span<const HashedTensor> tensors);
/// A hash report of today (tessera.hash/2), as far as verify --against reads it.
std::string hash_report(const HashReport& report);

}  // namespace tessera::testing
