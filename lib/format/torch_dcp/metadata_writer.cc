#include "lib/format/torch_dcp/metadata_writer.h"

#include <tessera/encoding/pickle_writer.h>
#include <tessera/tensor/dtype.h>

#include <map>
#include <optional>
#include <span>
#include <utility>

#include "lib/format/torch_dcp/dcp_names.h"

namespace tessera::dcp {
namespace {

constexpr std::string_view kVersion = "1.0.0";
constexpr std::size_t kPicklerBatch =
    1000;  // pairs or elements per opcode, as Python's pickler batches

class MetadataWriter {
 public:
  MetadataWriter(const std::vector<WrittenEntry>& entries, const std::vector<WrittenItem>& items)
      : entries_(entries), items_(items) {
    group_items();
  }

  Bytes run() {
    begin_object(kMetadataModule, "Metadata");
    out_.string("state_dict_metadata");
    state_dict_metadata();
    out_.string("planner_data");
    planner_data();
    out_.string("storage_data");
    storage_data();
    out_.string("storage_meta");
    out_.none();
    out_.string("version");
    out_.string(kVersion);
    end_object();
    return out_.finish();
  }

 private:
  /// Positions of items by entry, and each item's position in its entry's chunk list.
  void group_items() {
    first_.assign(entries_.size() + 1, 0);
    for (const WrittenItem& item : items_) ++first_[item.entry + 1];
    for (std::size_t e = 0; e < entries_.size(); ++e) first_[e + 1] += first_[e];
    std::vector<std::uint64_t> next(first_.begin(), first_.end() - 1);
    by_entry_.resize(items_.size());
    position_.resize(items_.size());
    for (std::size_t i = 0; i < items_.size(); ++i) {
      const std::uint32_t e = items_[i].entry;
      position_[i] = next[e] - first_[e];
      by_entry_[next[e]++] = i;
    }
  }

  /// An instance without arguments; its attributes follow as pairs, until end_object().
  void begin_object(std::string_view module, std::string_view name) {
    instance(module, name);
    out_.empty_dict();
    out_.mark();
  }
  void end_object() {
    out_.set_items();
    out_.build();
  }
  void instance(std::string_view module, std::string_view name) {
    out_.global(module, name);
    out_.empty_tuple();
    out_.new_object();
  }

  /// Calls `one(i)` for i in [0, n) between MARKs and `close`, in batches.
  template <class One, class Close>
  void batches(std::size_t n, One one, Close close) {
    for (std::size_t i = 0; i < n; ++i) {
      if (i % kPicklerBatch == 0) out_.mark();
      one(i);
      if (i % kPicklerBatch == kPicklerBatch - 1 || i + 1 == n) close();
    }
  }

  void size(std::span<const std::int64_t> numbers) {
    out_.global("torch", "Size");
    out_.mark();
    for (const std::int64_t n : numbers) out_.integer(n);
    out_.tuple();
    out_.tuple_n(1);
    out_.reduce();
  }

  void state_dict_metadata() {
    out_.empty_dict();
    batches(
        entries_.size(),
        [&](std::size_t e) {
          out_.string(entries_[e].name);
          if (entries_[e].is_tensor) {
            tensor(e);
          } else {
            instance(kMetadataModule, "BytesStorageMetadata");  // no attributes, so no BUILD
          }
        },
        [&] { out_.set_items(); });
  }

  void tensor(std::size_t e) {
    begin_object(kMetadataModule, "TensorStorageMetadata");
    out_.string("properties");
    properties(entries_[e].spec.dtype);
    out_.string("size");
    size(entries_[e].spec.shape.extents());
    out_.string("chunks");
    out_.empty_list();
    batches(
        first_[e + 1] - first_[e],
        [&](std::size_t i) {
          const Box& box = *items_[by_entry_[first_[e] + i]].box;
          begin_object(kMetadataModule, "ChunkStorageMetadata");
          out_.string("offsets");
          size(box.origin);
          out_.string("sizes");
          size(box.shape.extents());
          end_object();
        },
        [&] { out_.append_items(); });
    end_object();
  }

  /// One shared object per dtype: (dtype, layout, requires_grad, memory format, pin_memory).
  void properties(DType dtype) {
    const auto found = properties_.find(dtype);
    if (found != properties_.end()) return out_.get(found->second);
    instance(kMetadataModule, "TensorProperties");
    const std::uint32_t memo = out_.put();
    out_.mark();
    out_.global("torch", torch_name(dtype));
    layout();
    out_.boolean(false);
    memory_format();
    out_.boolean(false);
    out_.tuple();
    out_.build();
    properties_.emplace(dtype, memo);
  }

  void layout() {
    if (layout_) return out_.get(*layout_);
    out_.global("torch.serialization", "_get_layout");
    out_.string("torch.strided");
    out_.tuple_n(1);
    out_.reduce();
    layout_ = out_.put();
  }

  void memory_format() {
    if (memory_format_) return out_.get(*memory_format_);
    out_.global(kMetadataModule, "_MEM_FORMAT_ENCODING");
    out_.integer(0);  // TORCH_CONTIGUOUS_FORMAT
    out_.tuple_n(1);
    out_.reduce();
    memory_format_ = out_.put();
  }

  void planner_data() {
    out_.empty_dict();
    batches(
        entries_.size(),
        [&](std::size_t e) {
          out_.string(entries_[e].name);
          out_.mark();
          if (entries_[e].path.empty()) out_.string(entries_[e].name);
          bool top = true;
          for (const PathItem& step : entries_[e].path) path_step(step, std::exchange(top, false));
          out_.tuple();
        },
        [&] { out_.set_items(); });
  }

  /// DCP turns every key of a dict to text; integers are positions in lists. PyTorch rebuilds the
  /// top as a dict whatever the paths say, so that positions in a list there are text, too.
  void path_step(const PathItem& step, bool top) {
    if (step.kind == PathItem::Kind::kIndex && !top) {
      out_.integer(step.index);
    } else {
      out_.string(step.text());
    }
  }

  void storage_data() {
    out_.empty_dict();
    batches(
        items_.size(),
        [&](std::size_t i) {
          index(i);
          begin_object(kFilesystemModule, "_StorageInfo");
          out_.string("relative_path");
          out_.string(data_file_name(items_[i].rank));
          out_.string("offset");
          out_.integer(static_cast<std::int64_t>(items_[i].offset));
          out_.string("length");
          out_.integer(static_cast<std::int64_t>(items_[i].length));
          end_object();
        },
        [&] { out_.set_items(); });
  }

  void index(std::size_t i) {
    const WrittenItem& item = items_[i];
    begin_object(kMetadataModule, "MetadataIndex");
    out_.string("fqn");
    out_.string(entries_[item.entry].name);
    out_.string("index");
    if (item.box) {
      out_.integer(static_cast<std::int64_t>(position_[i]));
      out_.string("offset");
      size(item.box->origin);
    } else {
      out_.none();
    }
    end_object();
  }

  const std::vector<WrittenEntry>& entries_;
  const std::vector<WrittenItem>& items_;
  std::vector<std::uint64_t> first_;
  std::vector<std::uint64_t> by_entry_;
  std::vector<std::uint64_t> position_;
  PickleEmitter out_;
  std::map<DType, std::uint32_t> properties_;
  std::optional<std::uint32_t> layout_;
  std::optional<std::uint32_t> memory_format_;
};

}  // namespace

Bytes render_metadata(const std::vector<WrittenEntry>& entries,
                      const std::vector<WrittenItem>& items) {
  return MetadataWriter(entries, items).run();
}

}  // namespace tessera::dcp
