#include "lib/format/torch_dcp/metadata_writer.h"

#include <tessera/encoding/pickle_writer.h>
#include <tessera/tensor/dtype.h>

#include <map>
#include <optional>
#include <span>
#include <utility>

#include "lib/format/torch_dcp/names.h"

namespace tessera::dcp {
namespace {

constexpr std::string_view kVersion = "1.0.0";
constexpr std::size_t kPicklerBatch =
    1000;  // pairs or elements per opcode, as Python's pickler batches

/// Texts and classes that stand in every chunk: looked up once, then known by their place in the
/// memo.
struct Word {
  std::string_view text;
  std::optional<std::uint32_t> memo = std::nullopt;
};
struct Class {
  std::string_view module;
  std::string_view name;
  std::optional<std::uint32_t> memo = std::nullopt;
};

class MetadataWriter {
 public:
  MetadataWriter(const WrittenEntries& entries, const WrittenItems& items,
                 PickleEmitter::Output output)
      : entries_(entries), items_(items), out_(output), names_(entries.count) {
    group_items();
  }

  std::uint64_t length() {
    run();
    return out_.length();
  }

  Bytes run(std::uint64_t length = 0) {
    out_.reserve(length);
    begin_object(metadata_);
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
    first_.assign(entries_.count + 1, 0);
    for (std::size_t i = 0; i < items_.count; ++i) ++first_[items_.entry_of(i) + 1];
    for (std::size_t e = 0; e < entries_.count; ++e) first_[e + 1] += first_[e];
    std::vector<std::uint32_t> next(first_.begin(), first_.end() - 1);
    by_entry_.resize(items_.count);
    position_.resize(items_.count);
    for (std::size_t i = 0; i < items_.count; ++i) {
      const std::uint32_t e = items_.entry_of(i);
      position_[i] = next[e] - first_[e];
      by_entry_[next[e]++] = static_cast<std::uint32_t>(i);
    }
  }

  void word(Word& word) {
    known(word.memo, [&] { return out_.string(word.text); });
  }
  /// The name of an entry, as the first of its two dicts has it.
  void name(std::size_t entry) {
    known(names_[entry], [&] { return out_.string(entries_.at(entry).state.name); });
  }
  void file_name(std::int64_t rank) {
    const auto number = static_cast<std::size_t>(rank);
    if (number >= files_.size()) files_.resize(number + 1);
    known(files_[number], [&] { return out_.string(data_file_name(rank)); });
  }
  template <class First>
  void known(std::optional<std::uint32_t>& memo, First&& first) {
    if (memo) {
      out_.get(*memo);
    } else {
      memo = first();
    }
  }

  /// An instance without arguments; its attributes follow as pairs, until end_object().
  void begin_object(Class& cls) {
    instance(cls);
    out_.empty_dict();
    out_.mark();
  }
  void end_object() {
    out_.set_items();
    out_.build();
  }
  void instance(Class& cls) {
    known(cls.memo, [&] { return out_.global(cls.module, cls.name); });
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
    known(size_.memo, [&] { return out_.global(size_.module, size_.name); });
    out_.mark();
    for (const std::int64_t n : numbers) out_.integer(n);
    out_.tuple();
    out_.tuple_n(1);
    out_.reduce();
  }

  void state_dict_metadata() {
    out_.empty_dict();
    batches(
        entries_.count,
        [&](std::size_t e) {
          name(e);
          if (const TensorSpec* spec = entries_.at(e).spec) {
            tensor(e, *spec);
          } else {
            instance(bytes_metadata_);  // no attributes, so no BUILD
          }
        },
        [&] { out_.set_items(); });
  }

  void tensor(std::size_t e, const TensorSpec& spec) {
    begin_object(tensor_metadata_);
    out_.string("properties");
    properties(spec.dtype);
    out_.string("size");
    size(spec.shape.extents());
    out_.string("chunks");
    out_.empty_list();
    batches(
        first_[e + 1] - first_[e],
        [&](std::size_t i) {
          const ChunkView chunk = *items_.at(by_entry_[first_[e] + i]).chunk;
          begin_object(chunk_metadata_);
          word(offsets_);
          size(chunk.origin);
          word(sizes_);
          size(chunk.extents);
          end_object();
        },
        [&] { out_.append_items(); });
    end_object();
  }

  /// One shared object per dtype: (dtype, layout, requires_grad, memory format, pin_memory).
  void properties(DType dtype) {
    const auto found = properties_.find(dtype);
    if (found != properties_.end()) return out_.get(found->second);
    instance(tensor_properties_);
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
        entries_.count,
        [&](std::size_t e) {
          name(e);
          out_.mark();
          const StateEntry& entry = entries_.at(e).state;
          if (entry.path.empty()) out_.string(entry.name);
          bool top = true;
          for (const PathItem& step : entry.path) path_step(step, std::exchange(top, false));
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
        items_.count,
        [&](std::size_t i) {
          const WrittenItem item = items_.at(i);
          index(i, item);
          begin_object(storage_info_);
          word(relative_path_);
          file_name(item.rank);
          word(offset_);
          out_.integer(static_cast<std::int64_t>(item.offset));
          word(length_);
          out_.integer(static_cast<std::int64_t>(item.length));
          end_object();
        },
        [&] { out_.set_items(); });
  }

  void index(std::size_t i, const WrittenItem& item) {
    begin_object(metadata_index_);
    word(fqn_);
    name(item.entry);
    word(index_);
    if (item.chunk) {
      out_.integer(static_cast<std::int64_t>(position_[i]));
      word(offset_);
      size(item.chunk->origin);
    } else {
      out_.none();
    }
    end_object();
  }

  const WrittenEntries& entries_;
  const WrittenItems& items_;
  std::vector<std::uint32_t> first_;
  std::vector<std::uint32_t> by_entry_;
  std::vector<std::uint32_t> position_;
  PickleEmitter out_;
  std::vector<std::optional<std::uint32_t>> names_;
  std::vector<std::optional<std::uint32_t>> files_;  // by rank
  Word offsets_{"offsets"}, sizes_{"sizes"}, offset_{"offset"}, length_{"length"};
  Word relative_path_{"relative_path"}, fqn_{"fqn"}, index_{"index"};
  Class size_{"torch", "Size"};
  Class metadata_{kMetadataModule, "Metadata"};
  Class bytes_metadata_{kMetadataModule, "BytesStorageMetadata"};
  Class tensor_metadata_{kMetadataModule, "TensorStorageMetadata"};
  Class chunk_metadata_{kMetadataModule, "ChunkStorageMetadata"};
  Class tensor_properties_{kMetadataModule, "TensorProperties"};
  Class metadata_index_{kMetadataModule, "MetadataIndex"};
  Class storage_info_{kFilesystemModule, "_StorageInfo"};
  std::map<DType, std::uint32_t> properties_;
  std::optional<std::uint32_t> layout_;
  std::optional<std::uint32_t> memory_format_;
};

}  // namespace

Bytes render_metadata(const WrittenEntries& entries, const WrittenItems& items,
                      std::uint64_t length) {
  return MetadataWriter(entries, items, PickleEmitter::Output::kBytes).run(length);
}

std::uint64_t count_metadata(const WrittenEntries& entries, const WrittenItems& items) {
  return MetadataWriter(entries, items, PickleEmitter::Output::kLength).length();
}

}  // namespace tessera::dcp
