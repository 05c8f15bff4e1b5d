#include <fmt/format.h>
#include <tessera/base/error.h>

#include <algorithm>
#include <set>

#include "lib/format/torch_save/sparse.h"
#include "lib/format/torch_save/ts_parts.h"

namespace tessera::torch_save {
namespace {

bool is_dense(const Shape& shape, const std::vector<std::int64_t>& strides) {
  const std::vector<std::int64_t> dense = shape.strides();
  for (int d = 0; d < shape.rank(); ++d)
    if (shape[d] != 1 && strides[static_cast<std::size_t>(d)] != dense[static_cast<std::size_t>(d)])
      return false;
  return true;
}

/// Elements from the first to the last one touched; the archive checked that they fit.
std::int64_t span_numel(const ArchiveTensor& tensor) {
  std::int64_t span = 1;
  for (int d = 0; d < tensor.shape.rank(); ++d)
    span += (tensor.shape[d] - 1) * tensor.strides[static_cast<std::size_t>(d)];
  return span;
}

std::uint32_t record_of(Manifest& manifest, const ArchiveStorage& storage, std::uint32_t file) {
  if (!storage.has_crc || storage.size_bytes == 0) return 0;
  // Tensors of one storage follow each other almost always.
  auto& records = manifest.records;
  const auto same = [&](const Record& r) {
    return r.file == file && r.offset == storage.offset && r.length == storage.size_bytes;
  };
  for (std::size_t back = 0; back < std::min<std::size_t>(records.size(), 16); ++back)
    if (same(records[records.size() - 1 - back]))
      return static_cast<std::uint32_t>(records.size() - back);
  records.push_back({file, storage.crc32, storage.offset, storage.size_bytes});
  return static_cast<std::uint32_t>(records.size());
}

std::uint64_t inline_total(const Manifest& manifest) {
  std::uint64_t total = 0;
  for (const Bytes& bytes : manifest.inline_bytes) total += bytes.size();
  return total;
}

class Locator {
 public:
  Locator(const ByteWindow& window, const TorchArchive& archive, Manifest& manifest,
          const ReadOptions& options)
      : window_(window), archive_(archive), manifest_(manifest), options_(options) {}

  void locate(const StoredTensor& stored, Source& source) {
    if (source.side >= archive_.tensors.size()) changed();
    const ArchiveTensor& tensor = archive_.tensors[source.side];
    if (tensor.dtype != stored.spec.dtype || tensor.shape != stored.spec.shape) changed();
    using Layout = ArchiveTensor::Layout;
    if (tensor.layout == Layout::kMeta)
      fail(Code::kUnsupported, "a tensor on the meta device: it has a shape, but no data",
           "leave it out (--exclude)");
    if (tensor.layout == Layout::kStrided)
      return set_extent(manifest_, archive_, tensor, source.file, source);
    make_dense(source);
  }

 private:
  [[noreturn]] static void changed() { fail(Code::kCorrupt, "the file changed while it was read"); }

  void make_dense(Source& source) {
    const std::uint64_t used = inline_total(manifest_);
    const std::uint64_t left =
        options_.memory_limit_bytes - std::min(used, options_.memory_limit_bytes);
    Bytes bytes = densify(window_, archive_, source.side, left, options_.check_crc);
    source.kind = Source::Kind::kInline;
    source.offset = 0;
    source.length = bytes.size();
    source.side = static_cast<std::uint32_t>(manifest_.inline_bytes.size());
    manifest_.inline_bytes.push_back(std::move(bytes));
  }

  const ByteWindow& window_;
  const TorchArchive& archive_;
  Manifest& manifest_;
  const ReadOptions& options_;
};

}  // namespace

void set_extent(Manifest& manifest, const TorchArchive& archive, const ArchiveTensor& tensor,
                std::uint32_t file, Source& source) {
  const ArchiveStorage& storage = archive.storages[tensor.storage];
  const auto item = static_cast<std::uint64_t>(element_bytes(tensor.dtype));
  const bool empty = tensor.shape.numel() == 0;
  source.kind = Source::Kind::kExtent;
  source.file = file;
  source.flags = tensor.flags;
  if (archive.big_endian && swap_unit_bytes(tensor.dtype) > 1) source.flags |= Source::kByteSwap;
  source.offset = storage.offset + static_cast<std::uint64_t>(tensor.storage_offset) * item;
  source.length = empty ? 0 : static_cast<std::uint64_t>(span_numel(tensor)) * item;
  source.side = 0;
  if (!empty && !is_dense(tensor.shape, tensor.strides)) {
    manifest.strides.push_back(tensor.strides);
    source.side = static_cast<std::uint32_t>(manifest.strides.size());
  }
  source.record = empty ? 0 : record_of(manifest, storage, file);
}

namespace {

/// A view may repeat its storage (stride 0): work stays bounded by the bytes present.
void check_repetition(const StoredTensor& tensor, const StoredFile& file) {
  constexpr std::uint64_t kAlways = std::uint64_t{256} << 20;
  constexpr std::uint64_t kTimes = 1024;
  const auto bytes = static_cast<std::uint64_t>(tensor.spec.size_bytes());
  if (bytes <= kAlways || bytes / kTimes <= file.size_bytes) return;
  fail(
      Code::kResourceExhausted,
      fmt::format("a view repeats its storage to {} bytes in a file of {}", bytes, file.size_bytes),
      "leave it out with --exclude");
}

void locate_in(const Directory& directory, Manifest& manifest, std::uint32_t file_number,
               std::span<const std::uint32_t> tensors, const ReadOptions& options) {
  const StoredFile& stored_file = manifest.files.at(file_number);
  const auto file = directory.open(stored_file.path);
  if (file->size_bytes() != stored_file.size_bytes)
    fail(Code::kCorrupt, "the file changed while it was read");
  const ByteWindow window = ByteWindow::whole(*file);
  TorchArchive archive = open_torch_archive(window);
  if (!archive.legacy) locate_storages(window, archive);
  Locator locator(window, archive, manifest, options);
  for (const std::uint32_t t : tensors) {
    const StoredTensor& stored = manifest.tensors[t];
    Source& source = manifest.chunks.source(stored.first_chunk);
    if (source.kind == Source::Kind::kPending && source.file == file_number)
      in_tensor(stored.name, [&] {
        check_repetition(stored, stored_file);
        locator.locate(stored, source);
      });
  }
}

}  // namespace

void locate(const Place& place, Manifest& manifest, std::span<const std::uint32_t> tensors,
            const ReadOptions& options) {
  std::set<std::uint32_t> files;
  for (const std::uint32_t t : tensors) {
    const Source& source = manifest.source(manifest.tensors[t], 0);
    if (source.kind == Source::Kind::kPending) files.insert(source.file);
  }
  for (const std::uint32_t file : files)
    in_file(manifest.files.at(file).path,
            [&] { locate_in(*place.directory, manifest, file, tensors, options); });
}

}  // namespace tessera::torch_save
