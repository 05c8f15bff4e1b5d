#pragma once
// Sources of archive tensors, before and after their storages are located.
//
//   pending   `side` the tensor; [offset, offset + length) its elements as if the storage's bytes
//             began at the record's header: so pieces of one tensor differ, and all lie in the file
//   extent    the same run at its true place, with strides and the record's checksum
#include <tessera/encoding/byte_window.h>
#include <tessera/encoding/torch_archive.h>
#include <tessera/format/format_driver.h>

#include <cstdint>
#include <map>
#include <tuple>

namespace tessera {

/// True for a strided tensor whose elements follow each other row-major.
bool is_dense(const ArchiveTensor& tensor);

/// Throws kCorrupt where `bytes`, all of the storage, do not have the CRC-32 that the archive
/// gives.
void check_storage(const ArchiveStorage& storage, ByteView bytes);

/// Elements [first_element, first_element + numel) of tensor `index`, all of it when it is not
/// dense.
Source pending_source(const TorchArchive& archive, std::uint32_t file, std::uint32_t index,
                      std::int64_t first_element, std::int64_t numel);

/// Turns pending sources of one manifest into extents (sparse tensors: dense inline bytes).
class SourceLocator {
 public:
  SourceLocator(Manifest& manifest, const ReadOptions& options);

  /// `chunk`: what the source holds of a tensor of `spec`. The archive's storages are located;
  /// `window`: its bytes, for sparse tensors. Throws kCorrupt when the archive does not agree.
  void locate(const ByteWindow& window, const TorchArchive& archive, const TensorSpec& spec,
              const Chunk& chunk, Source& source);

 private:
  void set_extent(const TorchArchive& archive, const ArchiveTensor& tensor, const Chunk& chunk,
                  Source& source);
  void make_dense(const ByteWindow& window, const TorchArchive& archive, Source& source);
  std::uint32_t record_of(const ArchiveStorage& storage, std::uint32_t file);

  using RecordKey = std::tuple<std::uint32_t, std::uint64_t, std::uint64_t>;
  Manifest& manifest_;
  const ReadOptions& options_;
  std::map<RecordKey, std::uint32_t> records_;
};

}  // namespace tessera
