#include "lib/format/torch_dcp/dcp_renderer.h"

#include <fmt/format.h>
#include <tessera/base/error.h>

#include <algorithm>

namespace tessera::dcp {
namespace {

constexpr std::size_t kMaxLayouts = 1024;
constexpr std::string_view kPrefix = "archive";  // as torch.save names archives written to a stream

}  // namespace

DcpRenderer::DcpRenderer(std::vector<OutputEntry> entries) : content_(std::make_shared<Content>()) {
  content_->entries = std::move(entries);
  for (std::uint32_t e = 0; e < content_->entries.size(); ++e)
    if (!content_->entries[e].written.is_tensor)
      content_->value_entries.emplace(content_->entries[e].source_entry, e);
}

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
  if (!values_.empty()) {
    const auto other = values_.find(static_cast<std::uint32_t>(&entry - entries().data()));
    if (other != values_.end())
      return TorchArchiveLayout(other->second, entry.tensors, std::string(kPrefix));
  }
  return TorchArchiveLayout(entry.value, entry.tensors, std::string(kPrefix));
}

std::vector<WrittenEntry> DcpRenderer::written_entries() const {
  std::vector<WrittenEntry> entries;
  entries.reserve(this->entries().size());
  for (const OutputEntry& entry : this->entries()) entries.push_back(entry.written);
  return entries;
}

WrittenItems DcpRenderer::written_items(const OutputPlan& plan) const {
  return {items().size(), [this](std::size_t i) { return items()[i].entry; },
          [this, &plan](std::size_t i) {
            const OutputItem& item = items()[i];
            WrittenItem written{item.entry, item.rank, item.offset, item.length, {}};
            if (entries()[item.entry].written.is_tensor) written.chunk = plan.chunks[item.chunk];
            return written;
          }};
}

Bytes DcpRenderer::metadata(const OutputPlan& plan) const {
  return render_metadata(written_entries(), written_items(plan));
}

std::uint64_t DcpRenderer::metadata_bytes(const OutputPlan& plan) const {
  return count_metadata(written_entries(), written_items(plan));
}

Bytes DcpRenderer::render(const OutputPlan& plan, std::size_t segment,
                          const SegmentCrc& crc) const {
  const std::uint64_t payload = plan.segments[segment].payload;
  if (payload == kMetadataPayload) return metadata(plan);
  const OutputItem& item = items()[payload >> kPieceBits];
  const auto wanted = static_cast<std::size_t>(payload & ((std::uint64_t{1} << kPieceBits) - 1));
  const OutputEntry& entry = entries()[item.entry];
  const Shape shape = entry.written.is_tensor ? Shape(plan.chunks[item.chunk].extents) : Shape();
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

namespace {

bool same_pieces(const TorchArchiveLayout& a, const TorchArchiveLayout& b) {
  return std::ranges::equal(a.pieces(), b.pieces(), [](const auto& x, const auto& y) {
    return x.kind == y.kind && x.length == y.length;
  });
}

}  // namespace

std::shared_ptr<const OutputRenderer> DcpRenderer::with_values(
    const OutputPlan&, std::span<const std::pair<std::uint32_t, Value>> values) const {
  const auto& value_entries = content_->value_entries;
  std::map<std::uint32_t, Value> replaced;
  for (const auto& [source_entry, value] : values) {
    const auto found = value_entries.find(source_entry);
    if (found == value_entries.end() || !entries()[found->second].tensors.empty()) return nullptr;
    replaced.emplace(found->second, value);
  }
  std::shared_ptr<DcpRenderer> made(new DcpRenderer(*this, std::move(replaced)));
  for (const auto& [e, value] : made->values_) {
    const OutputEntry& entry = entries()[e];
    if (!same_pieces(made->layout(entry, Shape()),
                     TorchArchiveLayout(entry.value, entry.tensors, std::string(kPrefix))))
      return nullptr;
  }
  return made;
}

}  // namespace tessera::dcp
