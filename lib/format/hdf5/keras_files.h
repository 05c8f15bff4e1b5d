#pragma once
// What Keras puts around HDF5 files.
//
//   model.keras          a zip: metadata.json, config.json and model.weights.h5, all stored
//   model.weights.json   {"metadata": {"total_size": N}, "weight_map": {"/layers/dense/vars":
//                        "model_00000.weights.h5" or a list of such names}}, beside those files
//
// Untrusted: names cannot leave the folder, sizes are bounded by the bytes present.
#include <tessera/base/bytes.h>
#include <tessera/storage/file_system.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::h5 {

/// The HDF5 file inside a `.keras` archive, and the texts beside it.
struct KerasArchive {
  std::uint64_t offset = 0;  // of model.weights.h5 in the archive
  std::uint64_t length = 0;
  std::vector<std::pair<std::string, std::string>> texts;  // config.json, metadata.json
};

bool has_keras_suffix(std::string_view name);
/// A zip by its name and first entry one of Keras, whatever else it holds: torch.save's entries lie
/// in a folder.
bool is_zip_named_keras(const ReadFile& file, std::string_view name);
/// A zip that is not torch.save's: it holds model.weights.h5 and config.json.
bool looks_like_keras(const ReadFile& file);
/// Throws kUnsupported for weights that are compressed, in several files or absent, kCorrupt for
/// damage.
KerasArchive open_keras(const ReadFile& file);

/// Bytes [offset, offset + length) of a file as a file. Borrows it.
class FilePart final : public ReadFile {
 public:
  FilePart(const ReadFile& file, std::uint64_t offset, std::uint64_t length)
      : file_(file), offset_(offset), length_(length) {}
  std::uint64_t size_bytes() const override { return length_; }
  const std::string& path() const override { return file_.path(); }
  void read_at(std::uint64_t offset, MutableBytes out) const override;

 private:
  const ReadFile& file_;
  std::uint64_t offset_, length_;
};

struct KerasIndex {
  std::map<std::string, std::vector<std::string>> groups;  // path without '/' in front -> shards
  std::vector<std::string> shards;                         // sorted, each once
};

bool has_index_suffix(std::string_view name);  // ".weights.json"
/// Throws kCorrupt for what is no index, or names files elsewhere.
KerasIndex parse_keras_index(ByteView json);
KerasIndex read_keras_index(const Directory& directory, const std::string& name);

}  // namespace tessera::h5
