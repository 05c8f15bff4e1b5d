#pragma once
// The files of one HDF5 checkpoint: the one that was named, and those its virtual datasets take
// elements from. Each is described once, by tessera-hdf5. Names cannot leave the folder.
#include <tessera/format/format_driver.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lib/format/hdf5/pieces.h"
#include "lib/format/hdf5/report.h"

namespace tessera::h5 {

struct DescribedFile {
  std::uint32_t number = 0;  // in Manifest::files
  std::uint64_t size_bytes = 0;
  std::uint64_t base = 0;  // where the HDF5 file begins in a .keras archive
  std::vector<std::pair<std::string, std::string>> texts;  // beside it in that archive
  std::optional<std::uint64_t> end;  // by its superblock: what follows is not the file's
  Report report;
};

class FileSet {
 public:
  FileSet(const Directory& directory, std::vector<StoredFile>& files)
      : directory_(directory), files_(files) {}

  /// Throws as Directory::open and describe_file do, with the file as context.
  const DescribedFile& get(const std::string& path);
  /// pieces_of(), with places in the file as it lies in the folder.
  std::vector<Piece> pieces(const DescribedFile& file, const Dataset& dataset, DType dtype) const;
  /// Why it cannot be read: "it is missing", "it is a symbolic link ..."; empty where it can.
  std::string absence(const std::string& path) const;
  const std::map<std::string, DescribedFile>& described() const { return described_; }
  const Directory& directory() const { return directory_; }

 private:
  const Directory& directory_;
  std::vector<StoredFile>& files_;
  std::map<std::string, DescribedFile> described_;
  std::string helper_;
};

/// Does it begin with HDF5's signature, at 0 or after a user block?
bool looks_like_hdf5(const ReadFile& file);

/// The end-of-file address of its superblock; nullopt where that is not read here.
std::optional<std::uint64_t> stated_end(const ReadFile& file);

/// ".h5", ".hdf5".
bool has_hdf5_suffix(std::string_view name);

/// The file a folder stands for: its only HDF5 file or .keras archive, the index of Keras' shards,
/// or the one that names all others in virtual datasets (seen by their names in its first MiB).
/// nullopt: none, or several.
std::optional<std::string> main_file(const Directory& directory);

}  // namespace tessera::h5
