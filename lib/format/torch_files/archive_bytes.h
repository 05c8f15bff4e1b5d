#pragma once
// The few tensor bytes that a manifest needs: a counter that is a number in the logical state, and
// what every rank stored, which must be known to be the same before one copy stands for all.
// Equality is read off the archives' CRC-32s where a storage holds one tensor; tensors without one
// are read, of large ones some blocks. Not thread-safe.
#include <tessera/base/bytes.h>
#include <tessera/state/value.h>

#include <map>
#include <optional>

#include "lib/format/torch_files/archive_manifest.h"

namespace tessera {

/// A tensor of an opened archive.
struct TensorRef {
  std::uint32_t file = 0;
  std::uint32_t tensor = 0;
};

/// Are two stored tensors equal? By the CRC-32s of their storages; nullopt: their bytes must be
/// compared.
std::optional<bool> known_equal(const TorchArchive& a, std::uint32_t i, const TorchArchive& b,
                                std::uint32_t j);

class ArchiveBytes {
 public:
  /// Both must outlive it.
  ArchiveBytes(const Directory& directory, ArchiveManifestBuilder& builder)
      : directory_(directory), builder_(builder) {}

  const ArchiveTensor& tensor(TensorRef ref) const;

  /// Elements [first, first + numel) of a dense tensor, little-endian. Throws kCorrupt, kIo.
  Bytes read(TensorRef ref, std::int64_t first, std::int64_t numel);
  /// A tensor of one element as a Python number; nullopt for a dtype that is none. Nothing proves
  /// it later, so its storage is held to its CRC-32, up to 64 KiB: kCorrupt, or, where damage is
  /// tolerated, a note CK041 and nullopt. `damaged`: whether it was that.
  std::optional<Value> number(TensorRef ref, bool* damaged = nullptr);

  /// False for tensors that read() refuses: strided, sparse, packed.
  bool is_readable(TensorRef ref) const;

  enum class Answer : std::uint8_t { kEqual, kDifferent, kUnknown };
  Answer same(TensorRef a, TensorRef b);
  /// The same question of two values, each part of one archive: equal with equal tensors inside.
  Answer same(std::uint32_t file_a, const Value& a, std::uint32_t file_b, const Value& b);

 private:
  bool prove_storage(TensorRef ref);
  /// Its storages located, but for those whose records are damaged.
  const TorchArchive& located(std::uint32_t file);
  static std::uint64_t offset_of(const ArchiveStorage& storage, const ByteWindow& window);
  Answer compare(TensorRef a, TensorRef b, std::int64_t numel, std::int64_t item_bytes);

  const Directory& directory_;
  ArchiveManifestBuilder& builder_;
  std::map<std::uint32_t, TorchArchive> located_;
};

}  // namespace tessera
