#include <fmt/format.h>
#include <tessera/base/error.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "lib/format/torch_save/ts_files.h"
#include "lib/format/torch_save/ts_parts.h"
#include "lib/state/tensor_remapper.h"

namespace tessera::torch_save {
namespace {

constexpr std::uint64_t kMaxLeaves = std::uint64_t{1} << 24;

/// Adds one archive after another to a manifest.
class ManifestBuilder {
 public:
  /// `key`: where the archive's root stands in the whole, "" = it is the whole.
  void add_file(StoredFile file, const std::string& key, TorchArchive archive) {
    archive_ = std::move(archive);
    embedded_.clear();
    remap_ = TensorRemapper([this](std::uint32_t index) { return embed(index); });
    file_ = static_cast<std::uint32_t>(out_.files.size());
    for (GlobalUse& use : archive_.globals) use.file = file.path;
    for (Note& note : archive_.notes) note.file = file.path;
    out_.globals.insert(out_.globals.end(), archive_.globals.begin(), archive_.globals.end());
    out_.notes.insert(out_.notes.end(), archive_.notes.begin(), archive_.notes.end());
    out_.dialect =
        archive_.legacy ? "torch.save, legacy stream (before PyTorch 1.6)" : "torch.save, zip";
    out_.files.push_back(std::move(file));
    ValueBudget budget(kMaxLeaves);
    add_state(flatten(archive_.root, budget), key);
  }

  Manifest finish() {
    out_.format = "torch-save";
    if (out_.files.size() > 1) out_.dialect += fmt::format(", {} files", out_.files.size());
    return std::move(out_);
  }

 private:
  void add_state(StateDict state, const std::string& key) {
    const std::size_t before = out_.state.entries.size();
    for (StateEntry& entry : state.entries) {
      place(entry.path, key);
      if (!key.empty()) entry.name = dotted(entry.path);
      in_tensor(entry.name, [&] { take(entry); });
      out_.state.entries.push_back(std::move(entry));
    }
    for (ContainerNote& note : state.containers) {
      place(note.path, key);
      leaf_ = dotted(note.path);
      note.attributes = remap_(note.attributes);
      note.entries_before = before + std::min(note.entries_before, state.entries.size());
      out_.state.containers.push_back(std::move(note));
    }
  }
  static void place(Path& path, const std::string& key) {
    if (!key.empty()) path.insert(path.begin(), PathItem{PathItem::Kind::kKey, 0, key});
  }
  void take(StateEntry& entry) {
    leaf_ = entry.name;
    entry.value = entry.value.is_tensor() ? Value::tensor(add(entry.value.tensor_index(), false))
                                          : remap_(entry.value);
  }
  std::uint32_t embed(std::uint32_t index) {
    if (const auto known = embedded_.find(index); known != embedded_.end()) return known->second;
    const std::uint32_t number = add(index, true);
    embedded_.emplace(index, number);
    return number;
  }

  std::uint32_t add(std::uint32_t index, bool embedded) {
    const ArchiveTensor& tensor = archive_.tensors[index];
    StoredTensor stored;
    stored.name = leaf_;
    stored.spec = {tensor.dtype, tensor.shape};
    stored.first_chunk = out_.chunks.size();
    stored.chunk_count = 1;
    stored.embedded = embedded;
    stored.is_parameter = tensor.is_parameter;
    stored.requires_grad = tensor.requires_grad;
    out_.chunks.add(Chunk::whole_of(Box::whole(tensor.shape)), source_of(index));
    const auto number = static_cast<std::uint32_t>(out_.tensors.size());
    out_.tensors.push_back(std::move(stored));
    if (tensor.quant >= 0) {
      const std::int32_t quant = add_quant(archive_.quant[static_cast<std::size_t>(tensor.quant)]);
      out_.tensors[number].quant = quant;
    }
    return number;
  }
  Source source_of(std::uint32_t index) {
    const ArchiveTensor& tensor = archive_.tensors[index];
    Source source;
    source.file = file_;
    source.side = index;  // pending: which tensor of the archive
    if (tensor.layout != ArchiveTensor::Layout::kStrided) return source;
    const ArchiveStorage& storage = archive_.storages[tensor.storage];
    source.offset = storage.header_offset;
    source.length = storage.size_bytes;
    if (storage.located) set_extent(out_, archive_, tensor, file_, source);
    return source;
  }
  std::int32_t add_quant(QuantParams params) {
    params.scales = remap_(params.scales);
    params.zero_points = remap_(params.zero_points);
    out_.quant.push_back(std::move(params));
    return static_cast<std::int32_t>(out_.quant.size() - 1);
  }

  TorchArchive archive_;
  Manifest out_;
  std::string leaf_;  // the entry that is being taken
  std::unordered_map<std::uint32_t, std::uint32_t> embedded_;
  TensorRemapper remap_{{}};
  std::uint32_t file_ = 0;
};

}  // namespace

Manifest read_manifest(const Place& place, const ReadOptions& options) {
  std::vector<PartFile> parts = {{place.file, ""}};
  if (place.file.empty()) parts = find_parts(*place.directory);
  if (parts.empty())
    fail(Code::kUnsupported,
         "torch-save is one file, or model.pt with optim.pt; this folder is neither",
         "name the file");
  ArchiveOptions archive;
  archive.collect_denied = options.list_globals;
  archive.allow_opaque_root = options.list_globals;
  ManifestBuilder builder;
  for (const PartFile& part : parts)
    in_file(part.file, [&] {
      const auto file = place.directory->open(part.file);
      StoredFile stored{part.file, file->size_bytes(), 0};
      if (const auto info = place.directory->stat(part.file)) stored.mtime_ns = info->mtime_ns;
      builder.add_file(std::move(stored), part.key, open_torch_archive(ByteWindow::whole(*file), archive));
    });
  return builder.finish();
}

}  // namespace tessera::torch_save
