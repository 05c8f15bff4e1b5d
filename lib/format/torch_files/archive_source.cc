#include "lib/format/torch_files/archive_source.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/storage/checksum.h>

#include <algorithm>

#include "lib/format/torch_files/sparse.h"

namespace tessera {
namespace {

using StoredAs = ArchiveTensor::Layout;

[[noreturn]] void changed() { fail(Code::kCorrupt, "the file changed while it was read"); }

/// Elements from the first to the last one touched; the archive checked that they fit.
std::int64_t span_numel(const ArchiveTensor& tensor) {
  if (tensor.shape.numel() == 0) return 0;
  std::int64_t span = 1;
  for (int d = 0; d < tensor.shape.rank(); ++d)
    span += (tensor.shape[d] - 1) * tensor.strides[static_cast<std::size_t>(d)];
  return span;
}

std::uint64_t item_bytes(const ArchiveTensor& tensor) {
  return static_cast<std::uint64_t>(element_bytes(tensor.dtype));
}

/// Where the tensor's first element lies in its storage.
std::uint64_t view_offset(const ArchiveTensor& tensor) {
  return static_cast<std::uint64_t>(tensor.storage_offset) * item_bytes(tensor);
}

/// Where the record of a storage begins: its local header, or (legacy) its bytes.
std::uint64_t record_begin(const TorchArchive& archive, const ArchiveTensor& tensor) {
  const ArchiveStorage& storage = archive.storages[tensor.storage];
  return archive.legacy ? storage.offset : storage.header_offset;
}

std::uint64_t inline_total(const Manifest& manifest) {
  std::uint64_t total = 0;
  for (const Bytes& bytes : manifest.inline_bytes) total += bytes.size();
  return total;
}

}  // namespace

bool is_dense(const ArchiveTensor& tensor) {
  if (tensor.layout != StoredAs::kStrided) return false;
  if (tensor.shape.numel() == 0) return true;
  const std::vector<std::int64_t> dense = tensor.shape.strides();
  for (int d = 0; d < tensor.shape.rank(); ++d)
    if (tensor.shape[d] != 1 &&
        tensor.strides[static_cast<std::size_t>(d)] != dense[static_cast<std::size_t>(d)])
      return false;
  return true;
}

void check_storage(const ArchiveStorage& storage, ByteView bytes) {
  if (storage.has_crc && crc32(0, bytes) != storage.crc32)
    fail(Code::kCorrupt, fmt::format("the bytes of storage \"{}\" do not match their checksum",
                                     printable(storage.key)));
}

Source pending_source(const TorchArchive& archive, std::uint32_t file, std::uint32_t index,
                      std::int64_t first_element, std::int64_t numel) {
  const ArchiveTensor& tensor = archive.tensors[index];
  Source source;
  source.file = file;
  source.side = index;
  if (tensor.layout != StoredAs::kStrided) return source;
  const std::int64_t touched = is_dense(tensor) ? numel : span_numel(tensor);
  source.offset = record_begin(archive, tensor) + view_offset(tensor) +
                  static_cast<std::uint64_t>(first_element) * item_bytes(tensor);
  source.length = static_cast<std::uint64_t>(touched) * item_bytes(tensor);
  return source;
}

SourceLocator::SourceLocator(Manifest& manifest, const ReadOptions& options)
    : manifest_(manifest), options_(options) {
  for (std::uint32_t r = 0; r < manifest.records.size(); ++r) {
    const Record& record = manifest.records[r];
    records_.try_emplace({record.file, record.offset, record.length}, r + 1);
  }
}

void SourceLocator::locate(const ByteWindow& window, const TorchArchive& archive,
                           const TensorSpec& spec, const Chunk& chunk, Source& source) {
  if (source.side >= archive.tensors.size()) changed();
  const ArchiveTensor& tensor = archive.tensors[source.side];
  if (tensor.dtype != spec.dtype) changed();
  if (tensor.layout == StoredAs::kMeta)
    fail(Code::kUnsupported, "a tensor on the meta device: it has a shape, but no data",
         "leave it out (--exclude)");
  if (!is_dense(tensor) && (!chunk.is_whole_box() || chunk.box.shape != tensor.shape)) changed();
  if (tensor.layout == StoredAs::kStrided) return set_extent(archive, tensor, chunk, source);
  make_dense(window, archive, source);
}

void SourceLocator::set_extent(const TorchArchive& archive, const ArchiveTensor& tensor,
                               const Chunk& chunk, Source& source) {
  const ArchiveStorage& storage = archive.storages[tensor.storage];
  const std::uint64_t begin = record_begin(archive, tensor), base = begin + view_offset(tensor);
  const bool dense = is_dense(tensor);
  const auto touched = static_cast<std::uint64_t>(dense ? chunk.numel() : span_numel(tensor));
  const auto all = static_cast<std::uint64_t>(dense ? tensor.shape.numel() : span_numel(tensor));
  if (source.length != touched * item_bytes(tensor) || source.offset < base ||
      source.offset - base > all * item_bytes(tensor) ||
      source.length > all * item_bytes(tensor) - (source.offset - base))
    changed();
  source.kind = Source::Kind::kExtent;
  source.flags = tensor.flags;
  if (archive.big_endian && swap_unit_bytes(tensor.dtype) > 1) source.flags |= Source::kByteSwap;
  source.offset = storage.offset + (source.offset - begin);
  source.side = 0;
  if (!dense) {
    manifest_.strides.push_back(tensor.strides);
    source.side = static_cast<std::uint32_t>(manifest_.strides.size());
  }
  source.record = touched == 0 ? 0 : record_of(storage, source.file);
}

void SourceLocator::make_dense(const ByteWindow& window, const TorchArchive& archive,
                               Source& source) {
  const std::uint64_t used = inline_total(manifest_);
  const std::uint64_t left =
      options_.memory_limit_bytes - std::min(used, options_.memory_limit_bytes);
  Bytes bytes = densify(window, archive, source.side, left, options_.check_crc);
  source.kind = Source::Kind::kInline;
  source.offset = 0;
  source.length = bytes.size();
  source.side = static_cast<std::uint32_t>(manifest_.inline_bytes.size());
  manifest_.inline_bytes.push_back(std::move(bytes));
}

std::uint32_t SourceLocator::record_of(const ArchiveStorage& storage, std::uint32_t file) {
  if (!storage.has_crc || storage.size_bytes == 0) return 0;
  const auto next = static_cast<std::uint32_t>(manifest_.records.size() + 1);
  const auto [known, is_new] =
      records_.try_emplace({file, storage.offset, storage.size_bytes}, next);
  if (is_new)
    manifest_.records.push_back({file, storage.crc32, storage.offset, storage.size_bytes});
  return known->second;
}

}  // namespace tessera
