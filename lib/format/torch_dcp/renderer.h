#pragma once
// DcpRenderer: the bytes of a planned torch-dcp checkpoint besides its tensors' own. Keeps one row
// per item; headers, directories and `.metadata` are made anew from (dtype, shape) whenever they
// are written, names and paths from the source.
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
#include <string>
#include <vector>

#include "lib/format/torch_dcp/metadata_writer.h"
#include "lib/state/wrapper_rows.h"

namespace tessera::dcp {

inline constexpr int kPieceBits = 24;
inline constexpr std::uint64_t kMetadataPayload = ~std::uint64_t{0};

/// A value as it is written: the tree (shared with the source) and the tensors inside it, numbered
/// in order of first use.
struct OutputValue {
  Value value;
  std::vector<std::uint32_t> embedded;            // indices in the source Manifest::tensors
  std::vector<ArchiveWriteTensor> tensors;        // the same, as the archive needs them
  std::optional<RowWrapper> rows;                 // a tensor that is cut by rows, item for item
  std::vector<TorchArchiveLayout::Piece> pieces;  // of its archive, once planned
};

/// One item's rows of a tensor that is made of several.
struct OutputRows {
  Box box;                   // of the tensor as it looks
  OutputValue value;         // the object of these rows
  std::vector<Chunk> parts;  // of each of OutputValue::embedded
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
  /// `entries`: those of source.state that are written; `values`: of those among them that are no
  /// tensors, by their number in `entries`.
  DcpRenderer(const Manifest& source, std::vector<std::uint32_t> entries,
              std::map<std::uint32_t, OutputValue> values);

  const StateEntry& entry(std::uint32_t number) const {
    return content_->source.state.entries[content_->entries[number]];
  }
  /// Null: the entry is a value.
  const StoredTensor* tensor(std::uint32_t number) const {
    const Value& value = entry(number).value;
    return value.is_tensor() ? &content_->source.tensors[value.tensor_index()] : nullptr;
  }
  const OutputValue& value(std::uint32_t number) const { return content_->values.at(number); }
  const std::vector<OutputItem>& items() const { return content_->items; }
  /// `archive`: layout() of it.
  void add_item(const OutputItem& item, const TorchArchiveLayout& archive);
  /// The next item to be added is these rows.
  const OutputRows& add_rows(OutputRows rows) {
    return content_->rows.insert_or_assign(content_->items.size(), std::move(rows)).first->second;
  }
  void reserve_items(std::size_t count) { reserve_large(content_->items, count); }

  /// The archive of one item. `shape`: of the chunk; values: ignored.
  TorchArchiveLayout layout(std::uint32_t entry, const Shape& shape) const;
  static TorchArchiveLayout layout(const OutputValue& value);
  std::uint64_t metadata_bytes(const OutputPlan& plan) const;

  Bytes render(const OutputPlan& plan, std::size_t segment, const SegmentCrc& crc) const override;
  std::shared_ptr<const OutputRenderer> with_values(
      const OutputPlan& plan,
      std::span<const std::pair<std::uint32_t, Value>> values) const override;

 private:
  struct Content {
    const Manifest& source;
    std::vector<std::uint32_t> entries;  // in source.state, ascending
    std::map<std::uint32_t, OutputValue> values;
    std::vector<OutputItem> items;
    std::map<std::size_t, OutputRows> rows;  // by item
  };
  const OutputRows* rows_of(std::size_t item) const {
    const auto found = content_->rows.find(item);
    return found == content_->rows.end() ? nullptr : &found->second;
  }
  /// As `of`, its entries and items shared; the archives of `values` stand for those of their
  /// entries.
  DcpRenderer(const DcpRenderer& of, std::map<std::uint32_t, TorchArchiveLayout> values)
      : content_(of.content_), values_(std::move(values)) {}
  /// Chunks repeat few shapes; their layouts are kept for reuse, a bounded number of them.
  struct LayoutKey {
    DType dtype;
    std::vector<std::int64_t> extents;
    std::string quant;
    auto operator<=>(const LayoutKey&) const = default;
  };
  /// These refer to this, and to `plan`.
  WrittenEntries written_entries() const;
  WrittenItems written_items(const OutputPlan& plan) const;
  TorchArchiveLayout tensor_layout(const StoredTensor& tensor, const Shape& shape) const;

  std::shared_ptr<Content> content_;
  std::map<std::uint32_t, TorchArchiveLayout> values_;  // by entry: instead of OutputValue's
  mutable std::mutex mutex_;
  mutable std::map<LayoutKey, TorchArchiveLayout> layouts_;
};

}  // namespace tessera::dcp
