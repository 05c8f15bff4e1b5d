#include "lib/format/torch_dcp/renderer.h"

#include <fmt/format.h>
#include <tessera/base/error.h>

#include <algorithm>
#include <span>

namespace tessera::dcp {
namespace {

constexpr std::size_t kMaxLayouts = 1024;
constexpr std::string_view kPrefix = "archive";  // as torch.save names archives written to a stream

}  // namespace

DcpRenderer::DcpRenderer(const Manifest& source, std::vector<std::uint32_t> entries,
                         std::map<std::uint32_t, OutputValue> values)
    : content_(new Content{source, std::move(entries), std::move(values), {}, {}}) {}

TorchArchiveLayout DcpRenderer::tensor_layout(const StoredTensor& tensor,
                                              const Shape& shape) const {
  LayoutKey key{tensor.spec.dtype, {shape.extents().begin(), shape.extents().end()}, {}};
  const QuantParams* quant =
      tensor.quant >= 0 ? &content_->source.quant[static_cast<std::size_t>(tensor.quant)] : nullptr;
  if (quant != nullptr)
    key.quant = fmt::format("{} {} {}", quant->scheme, quant->scale, quant->zero_point);
  {
    const std::lock_guard lock(mutex_);
    const auto found = layouts_.find(key);
    if (found != layouts_.end()) return found->second;
  }
  ArchiveWriteTensor written;
  written.spec = {tensor.spec.dtype, shape};
  written.quant = quant;
  TorchArchiveLayout made(Value::tensor(0), {written}, std::string(kPrefix));
  const std::lock_guard lock(mutex_);
  if (layouts_.size() >= kMaxLayouts) layouts_.clear();
  layouts_.emplace(std::move(key), made);
  return made;
}

TorchArchiveLayout DcpRenderer::layout(std::uint32_t entry, const Shape& shape) const {
  if (const StoredTensor* written = tensor(entry)) return tensor_layout(*written, shape);
  if (const auto other = values_.find(entry); other != values_.end()) return other->second;
  return layout(value(entry));
}

TorchArchiveLayout DcpRenderer::layout(const OutputValue& value) {
  return TorchArchiveLayout(value.value, value.tensors, std::string(kPrefix));
}

void DcpRenderer::add_item(const OutputItem& item, const TorchArchiveLayout& archive) {
  content_->items.push_back(item);
  if (tensor(item.entry) == nullptr) content_->values.at(item.entry).pieces = archive.pieces();
}

WrittenEntries DcpRenderer::written_entries() const {
  return {content_->entries.size(), [this](std::size_t e) {
            const auto number = static_cast<std::uint32_t>(e);
            const StoredTensor* written = tensor(number);
            if (written != nullptr) return WrittenEntry{entry(number), &written->spec};
            const auto& rows = value(number).rows;
            return WrittenEntry{entry(number), rows ? &rows->spec : nullptr};
          }};
}

WrittenItems DcpRenderer::written_items(const OutputPlan& plan) const {
  return {items().size(), [this](std::size_t i) { return items()[i].entry; },
          [this, &plan](std::size_t i) {
            const OutputItem& item = items()[i];
            WrittenItem written{item.entry, item.rank, item.offset, item.length, {}};
            if (entry(item.entry).value.is_tensor())
              written.chunk = plan.chunks[item.chunk];
            else if (const OutputRows* rows = rows_of(i))
              written.chunk = ChunkView(rows->box.origin, rows->box.shape.extents());
            return written;
          }};
}

std::uint64_t DcpRenderer::metadata_bytes(const OutputPlan& plan) const {
  return count_metadata(written_entries(), written_items(plan));
}

Bytes DcpRenderer::render(const OutputPlan& plan, std::size_t segment,
                          const SegmentCrc& crc) const {
  const std::uint64_t payload = plan.segments[segment].payload;
  if (payload == kMetadataPayload)
    return render_metadata(written_entries(), written_items(plan), plan.segments[segment].length);
  const OutputItem& item = items()[payload >> kPieceBits];
  const auto wanted = static_cast<std::size_t>(payload & ((std::uint64_t{1} << kPieceBits) - 1));
  const bool is_tensor = entry(item.entry).value.is_tensor();
  const Shape shape = is_tensor ? Shape(plan.chunks[item.chunk].extents) : Shape();
  const OutputRows* rows = rows_of(payload >> kPieceBits);
  const TorchArchiveLayout archive =
      rows != nullptr ? layout(rows->value) : layout(item.entry, shape);

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

bool same_pieces(std::span<const TorchArchiveLayout::Piece> a,
                 std::span<const TorchArchiveLayout::Piece> b) {
  return std::ranges::equal(
      a, b, [](const auto& x, const auto& y) { return x.kind == y.kind && x.length == y.length; });
}

}  // namespace

std::shared_ptr<const OutputRenderer> DcpRenderer::with_values(
    const OutputPlan&, std::span<const std::pair<std::uint32_t, Value>> values) const {
  const std::vector<std::uint32_t>& written = content_->entries;
  std::map<std::uint32_t, TorchArchiveLayout> replaced;
  for (const auto& [source_entry, value] : values) {
    const auto found = std::ranges::lower_bound(written, source_entry);
    if (found == written.end() || *found != source_entry) return nullptr;
    const auto planned = content_->values.find(static_cast<std::uint32_t>(found - written.begin()));
    if (planned == content_->values.end() || !planned->second.tensors.empty()) return nullptr;
    TorchArchiveLayout other(value, {}, std::string(kPrefix));
    if (!same_pieces(other.pieces(), planned->second.pieces)) return nullptr;
    replaced.emplace(planned->first, std::move(other));
  }
  return std::shared_ptr<const OutputRenderer>(new DcpRenderer(*this, std::move(replaced)));
}

}  // namespace tessera::dcp
