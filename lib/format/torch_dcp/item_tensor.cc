#include "lib/format/torch_dcp/item_tensor.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/storage/checksum.h>
#include <tessera/tensor/region_copy.h>

#include <algorithm>
#include <utility>

#include "lib/state/tensor_wrapper.h"

namespace tessera::dcp {
namespace {

std::string_view layout_name(ArchiveTensor::Layout layout) {
  switch (layout) {
    case ArchiveTensor::Layout::kStrided:
      return "strided";
    case ArchiveTensor::Layout::kMeta:
      return "meta";
    default:
      return "sparse";
  }
}

/// Strides of dims that have at most one element do not matter.
bool is_dense(const Shape& shape, std::span<const std::int64_t> strides) {
  if (shape.numel() == 0) return true;
  const std::vector<std::int64_t> dense = shape.strides();
  for (int d = 0; d < shape.rank(); ++d) {
    const auto i = static_cast<std::size_t>(d);
    if (shape[d] > 1 && strides[i] != dense[i]) return false;
  }
  return true;
}

/// Elements from the first to one past the last that a view touches.
std::int64_t span_numel(const Shape& shape, std::span<const std::int64_t> strides) {
  std::int64_t last = 0;
  for (int d = 0; d < shape.rank(); ++d) {
    if (shape[d] == 0) return 0;
    last += (shape[d] - 1) * strides[static_cast<std::size_t>(d)];
  }
  return last + 1;
}

/// The encoded item has been read whole, so that its storage's CRC can be proved now.
void prove_record(const OpenItem& open, const ArchiveStorage& storage) {
  if (!storage.has_crc) return;
  const Bytes bytes = open.window.read(storage.offset, storage.size_bytes);
  if (crc32(0, bytes) != storage.crc32) {
    fail(Code::kCorrupt, fmt::format("CRC mismatch in record data/{}", storage.key));
  }
}

Bytes gather_dense(const OpenItem& open, std::uint64_t begin, std::uint64_t span_bytes,
                   const ArchiveTensor& tensor) {
  const Bytes view = open.window.read(begin, span_bytes);
  const int element = element_bytes(tensor.dtype);
  Bytes dense(static_cast<std::size_t>(TensorSpec{tensor.dtype, tensor.shape}.size_bytes()));
  copy_region(tensor.shape, element, view.data(), tensor.strides, dense.data(),
              tensor.shape.strides());
  return dense;
}

/// The archive of an item that .metadata calls a tensor.
TorchArchive open_archive(const ByteWindow& window, std::uint64_t pickle_limit_bytes) {
  ArchiveOptions options;
  options.allow_opaque_root = true;
  options.pickle_limit_bytes = pickle_limit_bytes;
  TorchArchive archive = open_torch_archive(window, options);
  if (const std::string wrapper = wrapper_class(archive.root); !wrapper.empty())
    fail(Code::kUnsupported,
         fmt::format("it is an object of class {}, around several tensors", printable(wrapper)),
         "--exclude leaves it out");
  if (!archive.root.is_tensor()) fail(Code::kCorrupt, "its item holds a value, not a tensor");
  return archive;
}

}  // namespace

LocatedChunk locate_tensor(const Manifest& manifest, const Item& item, const OpenItem& open,
                           const TorchArchive& archive, const ArchiveTensor& tensor) {
  if (tensor.layout != ArchiveTensor::Layout::kStrided) {
    fail(Code::kUnsupported,
         fmt::format("a {} tensor inside a torch-dcp item", layout_name(tensor.layout)));
  }
  LocatedChunk located;
  Source& source = located.source;
  source.file = item.file;
  source.flags = tensor.flags;
  if (archive.big_endian && swap_unit_bytes(tensor.dtype) > 1) source.flags |= Source::kByteSwap;
  if (tensor.quant >= 0) {
    located.quant = archive.quant[static_cast<std::size_t>(tensor.quant)];
    if (!located.quant->scales.is_none()) {
      fail(Code::kUnsupported, "a tensor quantized per channel inside a torch-dcp item");
    }
  }

  const ArchiveStorage& storage = archive.storages[tensor.storage];
  const auto element = static_cast<std::uint64_t>(element_bytes(tensor.dtype));
  const std::uint64_t begin =
      storage.offset + static_cast<std::uint64_t>(tensor.storage_offset) * element;
  const bool dense = is_dense(tensor.shape, tensor.strides);
  const std::uint64_t span_bytes =
      static_cast<std::uint64_t>(span_numel(tensor.shape, tensor.strides)) * element;

  if (!open.decoded) {
    source.kind = Source::Kind::kExtent;
    source.offset = open.window.offset + begin;
    source.length = span_bytes;
    if (!dense) located.strides = tensor.strides;
    if (storage.has_crc) {
      located.record =
          Record{item.file, storage.crc32, open.window.offset + storage.offset, storage.size_bytes};
    }
    return located;
  }
  prove_record(open, storage);
  if (!dense) {
    source.kind = Source::Kind::kInline;
    located.inline_bytes = gather_dense(open, begin, span_bytes, tensor);
    return located;
  }
  source.kind = Source::Kind::kCoded;
  source.offset = item.offset;
  source.length = item.length;
  located.codecs = manifest.codecs[item.codecs - 1];
  located.codecs.push_back(fmt::format("slice:{}:{}", begin, span_bytes));
  return located;
}

LocatedChunk locate_archive_item(const Manifest& manifest, const Item& item, const OpenItem& open,
                                 const TensorSpec& expected, std::uint64_t pickle_limit_bytes) {
  TorchArchive archive = open_archive(open.window, pickle_limit_bytes);
  ArchiveTensor& tensor = archive.tensors[archive.root.tensor_index()];
  // A shard without elements is recorded by the mesh dim that emptied it, and saved as it was made:
  // a second mesh dim leaves [4, 0] in .metadata and a tensor of shape [0, 0] in the item.
  const bool both_empty = tensor.shape.numel() == 0 && expected.shape.numel() == 0 &&
                          tensor.shape.rank() == expected.shape.rank();
  if (both_empty) {
    tensor.shape = expected.shape;
    tensor.strides = expected.shape.strides();
  }
  if (tensor.dtype != expected.dtype || tensor.shape != expected.shape) {
    fail(Code::kCorrupt,
         fmt::format("its item holds a {}, .metadata says {}",
                     TensorSpec{tensor.dtype, tensor.shape}.to_string(), expected.to_string()));
  }
  if (tensor.layout == ArchiveTensor::Layout::kStrided) locate_storages(open.window, archive);
  return locate_tensor(manifest, item, open, archive, tensor);
}

LocatedChunk locate_flat_part(const Manifest& manifest, const Item& item, const OpenItem& open,
                              DType dtype, std::int64_t first, std::int64_t count,
                              std::uint64_t pickle_limit_bytes) {
  TorchArchive archive = open_archive(open.window, pickle_limit_bytes);
  ArchiveTensor& tensor = archive.tensors[archive.root.tensor_index()];
  const std::int64_t numel = tensor.shape.rank() == 1 ? tensor.shape[0] : -1;
  const bool dense = tensor.layout == ArchiveTensor::Layout::kStrided && tensor.quant < 0 &&
                     is_dense(tensor.shape, tensor.strides);
  if (tensor.dtype != dtype || !dense || first > numel || count > numel - first) {
    fail(Code::kCorrupt,
         fmt::format("its item holds a {}, elements [{}, {} + {}) are asked of it",
                     TensorSpec{tensor.dtype, tensor.shape}.to_string(), first, first, count));
  }
  tensor.shape = Shape{count};
  tensor.strides = {1};
  tensor.storage_offset += first;
  locate_storages(open.window, archive);
  return locate_tensor(manifest, item, open, archive, tensor);
}

Source SideTables::join(LocatedChunk located) {
  Source source = located.source;
  if (located.record) {
    // Parts of one item come one after the other, and are proved together.
    const Record& record = *located.record;
    const bool again = !manifest_.records.empty() && manifest_.records.back() == record;
    if (!again) manifest_.records.push_back(record);
    source.record = static_cast<std::uint32_t>(manifest_.records.size());
  }
  if (!located.strides.empty()) {
    const auto [found, fresh] = strides_.emplace(located.strides, 0);
    if (fresh) {
      manifest_.strides.push_back(std::move(located.strides));
      found->second = static_cast<std::uint32_t>(manifest_.strides.size());
    }
    source.side = found->second;
  }
  if (source.kind == Source::Kind::kCoded) {
    const auto [found, fresh] =
        chains_.emplace(located.codecs, static_cast<std::uint32_t>(manifest_.codecs.size()));
    if (fresh) manifest_.codecs.push_back(std::move(located.codecs));
    source.side = found->second;
  }
  if (source.kind == Source::Kind::kInline) {
    inline_bytes_ += located.inline_bytes->size();
    source.side = static_cast<std::uint32_t>(manifest_.inline_bytes.size());
    manifest_.inline_bytes.push_back(std::move(*located.inline_bytes));
  }
  return source;
}

Source SideTables::join_embedded(LocatedChunk located) {
  if (!located.record) return join(std::move(located));
  const Record& record = *located.record;
  const auto [known, is_new] =
      embedded_.try_emplace({record.file, record.offset, record.length}, 0);
  if (!is_new) located.record.reset();
  Source source = join(std::move(located));
  if (is_new) known->second = source.record;
  source.record = known->second;
  return source;
}

}  // namespace tessera::dcp
