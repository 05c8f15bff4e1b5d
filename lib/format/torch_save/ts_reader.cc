#include <fmt/format.h>
#include <tessera/base/error.h>

#include <unordered_map>
#include <utility>

#include "lib/state/tensor_remapper.h"
#include "lib/format/torch_save/ts_parts.h"

namespace tessera::torch_save {
namespace {

constexpr std::uint64_t kMaxLeaves = std::uint64_t{1} << 24;

class ManifestBuilder {
 public:
  explicit ManifestBuilder(TorchArchive archive) : archive_(std::move(archive)) {}

  Manifest build(StoredFile file) {
    out_.format = "torch-save";
    out_.dialect =
        archive_.legacy ? "torch.save, legacy stream (before PyTorch 1.6)" : "torch.save, zip";
    out_.globals = std::move(archive_.globals);
    for (GlobalUse& use : out_.globals) use.file = file.path;
    out_.notes = std::move(archive_.notes);
    for (Note& note : out_.notes) note.file = file.path;
    out_.files.push_back(std::move(file));
    ValueBudget budget(kMaxLeaves);
    out_.state = flatten(archive_.root, budget);
    for (StateEntry& entry : out_.state.entries) in_tensor(entry.name, [&] { take(entry); });
    for (ContainerNote& note : out_.state.containers) {
      leaf_ = dotted(note.path);
      note.attributes = remap_(note.attributes);
    }
    return std::move(out_);
  }

 private:
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
    source.side = index;  // pending: which tensor of the archive
    if (tensor.layout != ArchiveTensor::Layout::kStrided) return source;
    const ArchiveStorage& storage = archive_.storages[tensor.storage];
    source.offset = storage.header_offset;
    source.length = storage.size_bytes;
    if (storage.located) set_extent(out_, archive_, tensor, 0, source);
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
  TensorRemapper remap_{[this](std::uint32_t index) { return embed(index); }};
};

}  // namespace

Manifest read_manifest(const Place& place, const ReadOptions&) {
  if (place.file.empty())
    fail(Code::kUnsupported, "torch-save is one file; this is a folder", "name the file");
  return in_file(place.file, [&] {
    const auto file = place.directory->open(place.file);
    StoredFile stored{place.file, file->size_bytes(), 0};
    if (const auto info = place.directory->stat(place.file)) stored.mtime_ns = info->mtime_ns;
    return ManifestBuilder(open_torch_archive(ByteWindow::whole(*file))).build(std::move(stored));
  });
}

}  // namespace tessera::torch_save
