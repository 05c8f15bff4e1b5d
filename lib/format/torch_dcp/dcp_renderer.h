#pragma once
// DcpRenderer: the bytes of a planned torch-dcp checkpoint besides its tensors' own. Keeps one row
// per item; headers, directories and `.metadata` are made anew from (dtype, shape) whenever they
// are written.
//
// Segment::payload of literals and deferred segments: item << kPieceBits | piece of its archive, or
// kMetadataPayload.
#include <tessera/base/large_array.h>
#include <tessera/encoding/torch_archive_writer.h>
#include <tessera/state/output_plan.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lib/format/torch_dcp/metadata_writer.h"

namespace tessera::dcp {

inline constexpr int kPieceBits = 24;
inline constexpr std::uint64_t kMetadataPayload = ~std::uint64_t{0};

/// One state entry as it is written. Values keep the tree (shared with the source) and the tensors
/// inside it, numbered in order of first use.
struct OutputEntry {
  std::uint32_t source_entry = 0;  // in the source Manifest::state.entries
  WrittenEntry written;
  std::optional<QuantParams> quant;
  Value value;
  std::vector<std::uint32_t> embedded;      // indices in the source Manifest::tensors
  std::vector<ArchiveWriteTensor> tensors;  // the same, as the archive needs them
};

struct OutputItem {
  std::uint32_t entry = 0;
  std::uint32_t rank = 0;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::uint64_t chunk = 0;  // in OutputPlan::chunks; values: unused
};

class DcpRenderer final : public OutputRenderer {
 public:
  explicit DcpRenderer(std::vector<OutputEntry> entries);

  const std::vector<OutputEntry>& entries() const { return content_->entries; }
  const std::vector<OutputItem>& items() const { return content_->items; }
  void add_item(const OutputItem& item) { content_->items.push_back(item); }
  void reserve_items(std::size_t count) { reserve_large(content_->items, count); }

  /// The archive of one item. `shape`: of the chunk; values: ignored.
  TorchArchiveLayout layout(const OutputEntry& entry, const Shape& shape) const;
  Bytes metadata(const OutputPlan& plan) const;
  std::uint64_t metadata_bytes(const OutputPlan& plan) const;

  Bytes render(const OutputPlan& plan, std::size_t segment, const SegmentCrc& crc) const override;
  std::shared_ptr<const OutputRenderer> with_values(
      const OutputPlan& plan,
      std::span<const std::pair<std::uint32_t, Value>> values) const override;

 private:
  struct Content {
    std::vector<OutputEntry> entries;
    std::vector<OutputItem> items;
    std::map<std::uint32_t, std::uint32_t> value_entries;  // source entry -> entry, but tensors'
  };
  /// As `of`, its entries and items shared; `values` stand for those of their entries.
  DcpRenderer(const DcpRenderer& of, std::map<std::uint32_t, Value> values)
      : content_(of.content_), values_(std::move(values)) {}
  /// Chunks repeat few shapes; their layouts are kept for reuse, a bounded number of them.
  struct LayoutKey {
    DType dtype;
    std::vector<std::int64_t> extents;
    std::string quant;
    auto operator<=>(const LayoutKey&) const = default;
  };
  std::vector<WrittenEntry> written_entries() const;
  /// Refers to `plan` and this.
  WrittenItems written_items(const OutputPlan& plan) const;
  TorchArchiveLayout tensor_layout(const OutputEntry& entry, const Shape& shape) const;

  std::shared_ptr<Content> content_;
  std::map<std::uint32_t, Value> values_;  // by entry: instead of OutputEntry::value
  mutable std::mutex mutex_;
  mutable std::map<LayoutKey, TorchArchiveLayout> layouts_;
};

}  // namespace tessera::dcp
