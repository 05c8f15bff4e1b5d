#pragma once
// What the formats made of torch.save files share: many archives of one folder read as data, and
// put together to one Manifest. (torch-save, torch-rank-files, fairscale-fsdp, deepspeed-*,
// megatron-torch, torchsnapshot.)
//
//   open()        archive directory and data.pkl; no storage byte
//   add_state()   a subtree of an archive as it stands: one whole chunk per tensor
//   add_tensor()  a logical tensor put together from pieces of tensors of several archives
//
// Sources stay pending until locate_archives() (archive_source.h).
#include <tessera/base/error.h>
#include <tessera/encoding/torch_archive.h>
#include <tessera/format/format_driver.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace tessera {

/// Elements [first_element, first_element + chunk.numel()) of one archive tensor's row-major ravel
/// are `chunk` of the logical tensor.
struct ArchivePiece {
  Chunk chunk;
  std::uint32_t file = 0;    // as open() numbered it
  std::uint32_t tensor = 0;  // in that archive's tensors
  std::int64_t first_element = 0;
};

class ArchiveManifestBuilder {
 public:
  /// `directory` must outlive the builder.
  ArchiveManifestBuilder(const Directory& directory, const ReadOptions& options);
  ~ArchiveManifestBuilder();

  const ReadOptions& options() const;

  /// Opens `path` of the folder and returns its number, which is also its index in Manifest::files.
  /// Errors carry the file. Globals and notes of the archive are taken over.
  std::uint32_t open(const std::string& path);
  /// The same for one rank's file of several. Where damage is tolerated
  /// (ReadOptions::tolerate_damage) and the file cannot be read, what is not part of the state:
  /// nullopt, and `why`. What is refused as unsafe, or as a feature, is thrown all the same.
  std::optional<std::uint32_t> try_open(const std::string& path, Status& why);
  const TorchArchive& archive(std::uint32_t file) const;

  /// Flattens `value`, part of that archive, below `prefix`: tensors whole, values with what they
  /// embed.
  /// `rank`: the one it belongs to, where ranks differ (StateEntry::rank).
  void add_state(std::uint32_t file, const Value& value, const Path& prefix,
                 std::optional<std::int64_t> rank = {});
  /// One tensor leaf. A piece that is not all of its archive tensor needs that tensor to be dense
  /// (kUnsupported otherwise). Throws kCorrupt when a piece leaves its archive tensor or the dtypes
  /// disagree. Whether the pieces cover the tensor is proved where every plan is.
  /// Returns its index in Manifest::tensors, to set kinds and flags through tensor().
  std::uint32_t add_tensor(const Path& path, const TensorSpec& spec,
                           std::span<const ArchivePiece> pieces);
  StoredTensor& tensor(std::uint32_t index);
  /// A value of that archive with references to the manifest's tensors: what it embeds is added,
  /// once, under `name`.
  Value adopt(std::uint32_t file, const Value& value, const std::string& name);
  /// One value leaf, stored as a whole (what it embeds is added).
  void add_value(std::uint32_t file, const Path& path, const Value& value);
  /// The manifest so far: to add notes, containers, provenance, Fill chunks.
  Manifest& manifest();

  /// Throws kCorrupt when two leaves have one name.
  Manifest finish(std::string format, std::string dialect);

 private:
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

/// FormatDriver::locate for every manifest this builder made. Each archive is opened once.
void locate_archives(const Directory& directory, Manifest& manifest,
                     std::span<const std::uint32_t> tensors, const ReadOptions& options);

}  // namespace tessera
