#include "lib/format/torch_dcp/dcp_renderer.h"

#include <fmt/format.h>
#include <tessera/base/error.h>

namespace tessera::dcp {
namespace {

constexpr std::size_t kMaxLayouts = 1024;
constexpr std::string_view kPrefix = "archive";  // as torch.save names archives written to a stream

}  // namespace

TorchArchiveLayout DcpRenderer::tensor_layout(const OutputEntry& entry, const Shape& shape) const {
  LayoutKey key{entry.written.spec.dtype, {shape.extents().begin(), shape.extents().end()}, {}};
  if (entry.quant) {
    key.quant =
        fmt::format("{} {} {}", entry.quant->scheme, entry.quant->scale, entry.quant->zero_point);
  }
  {
    const std::lock_guard lock(mutex_);
    const auto found = layouts_.find(key);
    if (found != layouts_.end()) return found->second;
  }
  ArchiveWriteTensor tensor;
  tensor.spec = {entry.written.spec.dtype, shape};
  tensor.quant = entry.quant ? &*entry.quant : nullptr;
  TorchArchiveLayout made(Value::tensor(0), {tensor}, std::string(kPrefix));
  const std::lock_guard lock(mutex_);
  if (layouts_.size() >= kMaxLayouts) layouts_.clear();
  layouts_.emplace(std::move(key), made);
  return made;
}

TorchArchiveLayout DcpRenderer::layout(const OutputEntry& entry, const Shape& shape) const {
  if (entry.written.is_tensor) return tensor_layout(entry, shape);
  return TorchArchiveLayout(entry.value, entry.tensors, std::string(kPrefix));
}

Bytes DcpRenderer::metadata(const OutputPlan& plan) const {
  std::vector<WrittenEntry> entries;
  entries.reserve(entries_.size());
  for (const OutputEntry& entry : entries_) entries.push_back(entry.written);
  std::vector<WrittenItem> items;
  items.reserve(items_.size());
  for (const OutputItem& item : items_) {
    const bool is_tensor = entries_[item.entry].written.is_tensor;
    items.push_back({item.entry, item.rank, item.offset, item.length,
                     is_tensor ? &plan.chunks[item.chunk].box : nullptr});
  }
  return render_metadata(entries, items);
}

Bytes DcpRenderer::render(const OutputPlan& plan, std::size_t segment,
                          const SegmentCrc& crc) const {
  const std::uint64_t payload = plan.segments[segment].payload;
  if (payload == kMetadataPayload) return metadata(plan);
  const OutputItem& item = items_[payload >> kPieceBits];
  const auto wanted = static_cast<std::size_t>(payload & ((std::uint64_t{1} << kPieceBits) - 1));
  const OutputEntry& entry = entries_[item.entry];
  const Shape shape = entry.written.is_tensor ? plan.chunks[item.chunk].box.shape : Shape();
  const TorchArchiveLayout archive = layout(entry, shape);

  // Pieces without bytes have no segment; the others follow each other from the item's first one.
  std::vector<std::size_t> segment_of(archive.pieces().size());
  std::size_t next = 0;
  for (std::size_t p = 0; p < archive.pieces().size(); ++p) {
    segment_of[p] = next;
    if (archive.pieces()[p].length > 0) ++next;
  }
  const std::size_t first = segment - segment_of[wanted];
  return archive.render(wanted, [&](std::uint32_t storage) -> std::uint32_t {
    for (std::size_t p = 0; p < archive.pieces().size(); ++p) {
      const TorchArchiveLayout::Piece& piece = archive.pieces()[p];
      if (piece.kind != TorchArchiveLayout::Piece::Kind::kStorage || piece.storage != storage)
        continue;
      return piece.length == 0 ? 0 : crc(first + segment_of[p]);
    }
    return 0;  // a storage of an empty tensor may have no piece at all
  });
}

}  // namespace tessera::dcp
