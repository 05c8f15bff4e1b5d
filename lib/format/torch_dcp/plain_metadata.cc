#include "lib/format/torch_dcp/plain_metadata.h"

#include <fmt/format.h>
#include <tessera/base/checked.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/encoding/pickle_globals.h>

#include <algorithm>
#include <array>
#include <deque>
#include <tuple>
#include <unordered_map>

#include "lib/encoding/utf8.h"
#include "lib/format/torch_dcp/dcp_names.h"
#include "lib/format/torch_dcp/plain_stream.h"

namespace tessera::dcp {
namespace plain {  // short names for what stands on the stack

enum class Kind : std::uint8_t {
  kNone,
  kBool,
  kInt,         // n
  kText,        // a: number of the text
  kGlobal,      // a: number of the global
  kSize,        // a: number of the torch.Size
  kTuple,       // a values from place n of the pool
  kDict,        // a: number of the dict
  kList,        // a: number of the list
  kProperties,  // a: number of the TensorProperties
  kTensor,      // a: number of the TensorStorageMetadata
  kBytes,       // a BytesStorageMetadata
  kChunk,       // a: rank, n: first coordinate
  kIndex,       // a: text of the name, n: number of the size, -1: none
  kInfo,        // a: text of the path, n: number of the Info
  kObject,      // made and not built yet. a: number of the global
  kMetadata,    // n: number of the dict of attributes
  kStorageMeta,
  kOpaque,  // never looked at: a layout, a memory format
};

struct Item {
  Kind kind = Kind::kNone;
  std::uint32_t a = 0;
  std::int64_t n = 0;
};

/// A vector whose push is a store: half of all opcodes push one item.
class Stack {
 public:
  void push(const Item& item) {
    if (size_ == items_.size()) items_.resize(std::max<std::size_t>(1024, 2 * size_));
    items_[size_++] = item;
  }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  Item& back() { return items_[size_ - 1]; }
  const Item& operator[](std::size_t i) const { return items_[i]; }
  void shrink(std::size_t size) { size_ = size; }
  std::span<const Item> from(std::size_t begin) const {
    return std::span(items_).subspan(begin, size_ - begin);
  }

 private:
  std::vector<Item> items_;
  std::size_t size_ = 0;
};

enum class Role : std::uint8_t {
  kOther,
  kSize,
  kMetadata,
  kTensor,
  kBytes,
  kChunk,
  kProperties,
  kIndex,
  kInfo,
  kPath,
  kEnum,  // called with one plain value; the result is not looked at
  kDType,
};

struct Global {
  std::string module;
  std::string name;
  Role role = Role::kOther;
};

struct Size {
  std::uint64_t first = 0;  // in the coordinates
  std::uint32_t count = 0;
};

struct Properties {
  std::optional<DType> dtype;  // none: not built yet
  bool requires_grad = false;
};

struct TensorMeta {
  std::uint32_t properties = 0;
  std::uint32_t size = 0;
  std::uint64_t first_coordinate = 0;
  std::uint32_t chunk_count = 0;
};

struct Info {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

inline Role role_of(std::string_view module, std::string_view name) {
  if (module == "torch" && name == "Size") return Role::kSize;
  if (module == "torch") return Role::kDType;
  if (module == "pathlib" || module == "pathlib._local") return Role::kPath;
  if (module == "torch.serialization" && name == "_get_layout") return Role::kEnum;
  if (module == kFilesystemModule && name == "_StorageInfo") return Role::kInfo;
  if (module != kMetadataModule) return Role::kOther;
  if (name == "Metadata") return Role::kMetadata;
  if (name == "TensorStorageMetadata") return Role::kTensor;
  if (name == "BytesStorageMetadata") return Role::kBytes;
  if (name == "ChunkStorageMetadata") return Role::kChunk;
  if (name == "TensorProperties") return Role::kProperties;
  if (name == "MetadataIndex") return Role::kIndex;
  return name == "_MEM_FORMAT_ENCODING" ? Role::kEnum : Role::kOther;
}

[[noreturn]] inline void leave() { throw LeaveIt{}; }
inline void need(bool condition) {
  if (!condition) leave();
}

/// One file's records, as the opcodes make them.
class PlainReader {
 public:
  PlainReader(const ByteWindow& window, DcpMetadata& out) : in_(window), out_(out) {
    // Only what is filled takes memory: no record is shorter than this.
    out_.coordinates.reserve(static_cast<std::size_t>(window.length / 16));
    out_.storage.reserve(static_cast<std::size_t>(window.length / 64));
    sizes_.reserve(static_cast<std::size_t>(window.length / 32));
    memo_.reserve(static_cast<std::size_t>(window.length / 6));
    most_copied_ = window.length;
  }

  void run() {
    while (!stopped_) {
      in_.begin_opcode();
      step(in_.byte());
    }
    need(in_.left() == 0);
  }

 private:
  // ---- stack, memo, pools

  Item pop() {
    need(stack_.size() > floor());
    const Item item = stack_.back();
    stack_.shrink(stack_.size() - 1);
    return item;
  }
  Item& top() {
    need(stack_.size() > floor());
    return stack_.back();
  }
  std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  void push(const Item& item) { stack_.push(item); }
  void push_integer(std::int64_t n) { push({Kind::kInt, 0, n}); }

  /// What may be asked for again: kind and number in 32 bits. 0: nothing that was kept.
  static constexpr int kNumberBits = 29;
  static std::uint32_t memo_word(const Item& item) {
    std::uint32_t tag = 0;
    switch (item.kind) {
      case Kind::kText:
        tag = 1;
        break;
      case Kind::kGlobal:
        tag = 2;
        break;
      case Kind::kSize:
        tag = 3;
        break;
      case Kind::kProperties:
        tag = 4;
        break;
      case Kind::kOpaque:
        tag = 5;
        break;
      default:
        return 0;
    }
    need(item.a < (1u << kNumberBits));
    return tag << kNumberBits | item.a;
  }
  void memo_put(std::uint64_t index) {
    need(index <= memo_.size());  // picklers number in order
    if (index == memo_.size()) memo_.push_back(0);
    memo_[static_cast<std::size_t>(index)] = memo_word(top());
  }
  void memo_get(std::uint64_t index) {
    static constexpr std::array kKinds = {Kind::kNone, Kind::kText,       Kind::kGlobal,
                                          Kind::kSize, Kind::kProperties, Kind::kOpaque};
    need(index < memo_.size() && memo_[static_cast<std::size_t>(index)] != 0);
    const std::uint32_t word = memo_[static_cast<std::size_t>(index)];
    push({kKinds[word >> kNumberBits], word & ((1u << kNumberBits) - 1), 0});
  }

  std::uint32_t number_of_text(std::string_view text) {
    if (const auto found = text_numbers_.find(text); found != text_numbers_.end())
      return found->second;
    need(is_python_utf8(text));
    texts_.emplace_back(text);
    const auto number = static_cast<std::uint32_t>(texts_.size() - 1);
    text_numbers_.emplace(texts_.back(), number);
    return number;
  }
  void push_text(std::string_view text) { push({Kind::kText, number_of_text(text), 0}); }
  const std::string& text_of(const Item& item) const {
    need(item.kind == Kind::kText);
    return texts_[item.a];
  }

  void push_global(std::string_view raw_module, std::string_view raw_name) {
    const auto [module, name] = canonical_global(raw_module, raw_name);
    need(is_python_utf8(module) && is_python_utf8(name));
    const auto [found, fresh] = global_numbers_.try_emplace(
        fmt::format("{}\n{}", module, name), static_cast<std::uint32_t>(globals_.size()));
    if (fresh) {
      const GlobalUse::Verdict verdict = classify_global(module, name);
      need(verdict != GlobalUse::Verdict::kDenied);
      globals_.push_back({std::string(module), std::string(name), role_of(module, name)});
      out_.globals.push_back({fmt::format("{}.{}", module, name), verdict, {}});
    }
    push({Kind::kGlobal, found->second, 0});
  }

  template <class Pool>
  static std::uint32_t new_in(Pool& pool) {
    pool.emplace_back();
    return static_cast<std::uint32_t>(pool.size() - 1);
  }
  void push_dict() {
    std::uint32_t number = 0;
    if (free_dicts_.empty()) {
      number = new_in(dicts_);
    } else {
      number = free_dicts_.back();
      free_dicts_.pop_back();
    }
    push({Kind::kDict, number, 0});
  }
  std::span<const Item> items_of(const Item& tuple) const {
    need(tuple.kind == Kind::kTuple);
    return std::span(pool_).subspan(static_cast<std::size_t>(tuple.n), tuple.a);
  }
  /// The tuple was the last use of its items.
  void drop(const Item& tuple) {
    if (static_cast<std::size_t>(tuple.n) + tuple.a == pool_.size())
      pool_.resize(static_cast<std::size_t>(tuple.n));
  }
  std::size_t mark_begin() const {
    need(!marks_.empty());
    return marks_.back();
  }
  void drop_to_mark() {
    stack_.shrink(marks_.back());
    marks_.pop_back();
  }

  // ---- opcodes

  void step(std::uint8_t opcode);
  void tuple_from(std::size_t begin) {
    const std::span<const Item> items = stack_.from(begin);
    const Item made{Kind::kTuple, static_cast<std::uint32_t>(items.size()),
                    static_cast<std::int64_t>(pool_.size())};
    pool_.insert(pool_.end(), items.begin(), items.end());
    stack_.shrink(begin);
    push(made);
  }
  void tuple_n(std::size_t n) {
    need(stack_.size() >= floor() + n);
    tuple_from(stack_.size() - n);
  }
  void tuple_from_mark() {
    const std::size_t begin = mark_begin();
    marks_.pop_back();
    tuple_from(begin);
  }
  /// What stands below the mark at `begin` is no other mark's.
  void need_below(std::size_t begin) const {
    const bool marked = !marks_.empty() && marks_.back() == begin;
    const std::size_t outer = !marked ? floor() : marks_.size() > 1 ? marks_[marks_.size() - 2] : 0;
    need(begin > outer);
  }
  void append_from(std::size_t begin) {
    need_below(begin);
    need(stack_[begin - 1].kind == Kind::kList);
    std::vector<Item>& list = lists_[stack_[begin - 1].a];
    const std::span<const Item> items = stack_.from(begin);
    list.insert(list.end(), items.begin(), items.end());
  }
  void set_from(std::size_t begin) {
    const std::span<const Item> pairs = stack_.from(begin);
    need_below(begin);
    need(stack_[begin - 1].kind == Kind::kDict && pairs.size() % 2 == 0);
    if (!pairs.empty() && pairs[0].kind == Kind::kIndex)
      return add_storage(stack_[begin - 1].a, pairs);
    std::vector<Item>& dict = dicts_[stack_[begin - 1].a];
    dict.insert(dict.end(), pairs.begin(), pairs.end());
  }
  void call() {
    const Item arguments = pop(), callable = pop();
    need(callable.kind == Kind::kGlobal);
    const std::span<const Item> given = items_of(arguments);
    const Role role = globals_[callable.a].role;
    if (role == Role::kPath) return push_path(arguments);
    need(given.size() == 1);
    if (role == Role::kSize) {
      const Item numbers = given[0];
      drop(arguments);
      return push_size(numbers);
    }
    need(role == Role::kEnum && (given[0].kind == Kind::kInt || given[0].kind == Kind::kText));
    drop(arguments);
    push({Kind::kOpaque, 0, 0});
  }
  /// A pathlib path, from its parts.
  void push_path(const Item& parts) {
    std::string text;
    for (const Item& part : items_of(parts)) {
      if (!text.empty() && !text.ends_with('/')) text += '/';
      text += text_of(part);
    }
    drop(parts);
    push_text(text);
  }
  /// Packed: place of the first number, then how many there are.
  static constexpr int kCountBits = 8;
  static_assert(kMaxRank < 1 << kCountBits);
  Size size_of(std::size_t number) const {
    const std::uint64_t word = sizes_[number];
    return {word >> kCountBits, static_cast<std::uint32_t>(word & ((1u << kCountBits) - 1))};
  }
  void push_size(const Item& numbers) {
    const std::span<const Item> values = items_of(numbers);
    need(values.size() <= static_cast<std::size_t>(kMaxRank));
    sizes_.push_back(out_.coordinates.size() << kCountBits | values.size());
    for (const Item& value : values) {
      need(value.kind == Kind::kInt && value.n >= 0);
      out_.coordinates.push_back(value.n);
    }
    drop(numbers);
    push({Kind::kSize, static_cast<std::uint32_t>(sizes_.size() - 1), 0});
  }
  void new_object() {
    const Item arguments = pop(), cls = pop();
    need(cls.kind == Kind::kGlobal && items_of(arguments).empty());
    switch (globals_[cls.a].role) {
      case Role::kProperties:
        return push({Kind::kProperties, new_in(properties_), 0});
      case Role::kBytes:
        return push({Kind::kBytes, 0, 0});
      case Role::kMetadata:
      case Role::kTensor:
      case Role::kChunk:
      case Role::kIndex:
      case Role::kInfo:
        return push({Kind::kObject, cls.a, 0});
      default:
        if (globals_[cls.a].module != kMetadataModule || globals_[cls.a].name != "StorageMeta")
          leave();
        push({Kind::kObject, cls.a, 0});
    }
  }

  // ---- objects

  /// The values of exactly these attributes, in the order asked for; each may come once.
  template <std::size_t n>
  std::array<Item, n> attributes(std::uint32_t dict, const std::array<std::string_view, n>& names) {
    const std::vector<Item>& pairs = dicts_[dict];
    need(pairs.size() == 2 * n);
    std::array<Item, n> values{};
    std::array<bool, n> found{};
    for (std::size_t i = 0; i < pairs.size(); i += 2) {
      const std::string& key = text_of(pairs[i]);
      std::size_t place = i / 2;  // as a rule they come in this order
      if (key != names[place]) {
        const auto other = std::find(names.begin(), names.end(), key);
        need(other != names.end());
        place = static_cast<std::size_t>(other - names.begin());
      }
      need(!found[place]);
      found[place] = true;
      values[place] = pairs[i + 1];
    }
    return values;
  }
  void free_dict(std::uint32_t number) {
    dicts_[number].clear();
    free_dicts_.push_back(number);
  }

  void build() {
    const Item state = pop();
    Item& target = top();
    if (target.kind == Kind::kProperties) return build_properties(properties_[target.a], state);
    need(target.kind == Kind::kObject && state.kind == Kind::kDict);
    switch (globals_[target.a].role) {
      case Role::kChunk:
        target = chunk(state.a);
        break;
      case Role::kIndex:
        target = index(state.a);
        break;
      case Role::kInfo:
        target = info(state.a);
        break;
      case Role::kTensor:
        target = tensor(state.a);
        break;
      case Role::kMetadata:
        target = {Kind::kMetadata, 0, state.a};
        return;
      default:
        storage_meta(state.a);
        target = {Kind::kStorageMeta, 0, 0};
    }
    free_dict(state.a);
  }

  void build_properties(Properties& properties, const Item& state) {
    const std::span<const Item> items = items_of(state);
    need(!properties.dtype && !items.empty() && items[0].kind == Kind::kGlobal);
    const Global& dtype = globals_[items[0].a];
    need(dtype.module == "torch");
    properties.dtype = dtype_from_torch_name(dtype.name);
    need(properties.dtype.has_value());
    if (items.size() > 2 && items[2].kind == Kind::kBool)
      properties.requires_grad = items[2].n != 0;
    drop(state);
  }

  Item chunk(std::uint32_t dict) {
    const auto [offsets, sizes] = attributes<2>(dict, {"offsets", "sizes"});
    need(offsets.kind == Kind::kSize && sizes.kind == Kind::kSize);
    const Size origin = size_of(offsets.a), extents = size_of(sizes.a);
    need(origin.count == extents.count);
    std::uint64_t first = origin.first;
    if (extents.first != first + origin.count) first = join(origin, extents);
    std::uint64_t numel = 1;
    for (std::uint32_t d = 0; d < origin.count; ++d) {
      const std::int64_t extent = out_.coordinates[first + origin.count + d];
      need(checked_add(out_.coordinates[first + d], extent).has_value());
      const auto grown =
          checked_mul(numel, static_cast<std::uint64_t>(std::max<std::int64_t>(extent, 1)));
      need(grown && *grown <= INT64_MAX);
      numel = *grown;
    }
    return {Kind::kChunk, origin.count, static_cast<std::int64_t>(first)};
  }

  /// Sizes that chunks share, one after the other at the end.
  std::uint64_t join(const Size& origin, const Size& extents) {
    const std::uint64_t first = out_.coordinates.size();
    for (const Size& size : {origin, extents}) copy_coordinates(size.first, size.count);
    return first;
  }
  void copy_coordinates(std::uint64_t from, std::uint64_t count) {
    need(count <= most_copied_);  // a few bytes may name many numbers
    most_copied_ -= count;
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::int64_t value = out_.coordinates[from + i];
      out_.coordinates.push_back(value);
    }
  }

  Item index(std::uint32_t dict) {
    Item fqn, number, offset;
    if (dicts_[dict].size() == 4) {  // a value's
      std::tie(fqn, number) = std::tuple_cat(attributes<2>(dict, {"fqn", "index"}));
    } else {
      std::tie(fqn, number, offset) =
          std::tuple_cat(attributes<3>(dict, {"fqn", "index", "offset"}));
    }
    need(fqn.kind == Kind::kText);
    need(offset.kind == Kind::kSize || offset.kind == Kind::kNone);
    return {Kind::kIndex, fqn.a, offset.kind == Kind::kSize ? std::int64_t{offset.a} : -1};
  }

  Item info(std::uint32_t dict) {
    std::array<Item, 3> values{};
    if (dicts_[dict].size() == 6) {
      values = attributes<3>(dict, {"relative_path", "offset", "length"});
    } else {
      const auto [path, offset, length, transforms] =
          attributes<4>(dict, {"relative_path", "offset", "length", "transform_descriptors"});
      need(transforms.kind == Kind::kNone);
      values = {path, offset, length};
    }
    need(values[0].kind == Kind::kText && values[1].kind == Kind::kInt && values[1].n >= 0 &&
         values[2].kind == Kind::kInt && values[2].n >= 0);
    infos_.push_back(
        {static_cast<std::uint64_t>(values[1].n), static_cast<std::uint64_t>(values[2].n)});
    return {Kind::kInfo, values[0].a, static_cast<std::int64_t>(infos_.size() - 1)};
  }

  Item tensor(std::uint32_t dict) {
    const auto [properties, size, chunks] = attributes<3>(dict, {"properties", "size", "chunks"});
    need(properties.kind == Kind::kProperties && size.kind == Kind::kSize &&
         chunks.kind == Kind::kList);
    std::vector<Item>& list = lists_[chunks.a];
    const std::uint32_t rank = size_of(size.a).count;
    TensorMeta made{properties.a, size.a, out_.coordinates.size(),
                    static_cast<std::uint32_t>(list.size())};
    bool follow = true;
    for (std::size_t i = 0; i < list.size(); ++i) {
      need(list[i].kind == Kind::kChunk && list[i].a == rank);
      follow = follow && list[i].n == list[0].n + static_cast<std::int64_t>(2 * rank * i);
    }
    if (follow && !list.empty()) {
      made.first_coordinate = static_cast<std::uint64_t>(list[0].n);
    } else {
      for (const Item& chunk : list)
        copy_coordinates(static_cast<std::uint64_t>(chunk.n), 2 * std::uint64_t{rank});
    }
    list = {};
    tensors_.push_back(made);
    return {Kind::kTensor, static_cast<std::uint32_t>(tensors_.size() - 1), 0};
  }

  void storage_meta(std::uint32_t dict) {
    const std::vector<Item>& pairs = dicts_[dict];
    for (std::size_t i = 0; i < pairs.size(); i += 2) {
      const std::string& key = text_of(pairs[i]);
      const Item& value = pairs[i + 1];
      need(value.kind == Kind::kText || value.kind == Kind::kNone ||
           (value.kind == Kind::kList && lists_[value.a].empty()));
      if (value.kind != Kind::kText || (key == "checkpoint_id" && text_of(value).empty())) continue;
      need(key == "checkpoint_id" || key == "save_id" || key == "load_id");
      out_.provenance[key] = text_of(value);
    }
  }

  void add_storage(std::uint32_t dict, std::span<const Item> pairs) {
    need(!storage_dict_ || *storage_dict_ == dict);
    need(dicts_[dict].empty());
    storage_dict_ = dict;
    for (std::size_t i = 0; i < pairs.size(); i += 2) {
      const Item &index = pairs[i], &info = pairs[i + 1];
      need(index.kind == Kind::kIndex && info.kind == Kind::kInfo);
      need(static_cast<std::size_t>(info.n) < infos_.size());
      DcpStorage item;
      item.entry = index.a;  // a text's number until finish()
      if (index.n >= 0) {
        const Size size = size_of(static_cast<std::size_t>(index.n));
        item.has_origin = true;
        item.first_coordinate = size.first;
        item.rank = size.count;
      }
      item.file = file(info.a);
      const Info& place = infos_[static_cast<std::size_t>(info.n)];
      item.offset = place.offset;
      item.length = place.length;
      out_.storage.push_back(item);
    }
    infos_.clear();  // the memo keeps none, so that nobody asks for them again
  }

  std::uint32_t file(std::uint32_t text) {
    if (text >= file_numbers_.size()) file_numbers_.resize(texts_.size(), DcpStorage::kNoEntry);
    std::uint32_t& number = file_numbers_[text];
    if (number == DcpStorage::kNoEntry) {
      number = static_cast<std::uint32_t>(out_.files.size());
      out_.files.push_back(texts_[text]);
    }
    return number;
  }

  // ---- the whole

  void finish(const Item& root) {
    need(root.kind == Kind::kMetadata && stack_.empty() && marks_.empty());
    const Item *entries = nullptr, *planner = nullptr, *storage = nullptr;
    bool has_storage_meta = false;
    std::string version;
    const std::vector<Item>& pairs = dicts_[static_cast<std::size_t>(root.n)];
    for (std::size_t i = 0; i < pairs.size(); i += 2) {
      const std::string& key = text_of(pairs[i]);
      const Item& value = pairs[i + 1];
      if (key == "state_dict_metadata" && !entries && value.kind == Kind::kDict) {
        entries = &value;
      } else if (key == "planner_data" && !planner &&
                 (value.kind == Kind::kDict || value.kind == Kind::kNone)) {
        planner = &value;
      } else if (key == "storage_data" && !storage && value.kind == Kind::kDict) {
        storage = &value;
      } else if (key == "storage_meta" && !has_storage_meta &&
                 (value.kind == Kind::kStorageMeta || value.kind == Kind::kNone)) {
        has_storage_meta = true;
      } else {
        need(key == "version" && version.empty());
        if (value.kind == Kind::kNone) continue;
        need(text_of(value).starts_with("1."));
        version = text_of(value);
      }
    }
    need(entries && storage && dicts_[storage->a].empty());
    need(!storage_dict_ || *storage_dict_ == storage->a);
    read_entries(dicts_[entries->a]);
    if (planner && planner->kind == Kind::kDict) read_paths(dicts_[planner->a]);
    for (DcpStorage& item : out_.storage) item.entry = entry_of(item.entry);
    if (!version.empty()) out_.provenance["dcp_version"] = version;
    out_.dialect = "DCP, PyTorch ";
    if (!version.empty()) {
      out_.dialect += fmt::format("2.10 or newer (version {})", printable(version));
    } else {
      out_.dialect += has_storage_meta ? "2.4 to 2.9" : "2.3";
    }
    stopped_ = true;
  }

  std::uint32_t entry_of(std::uint32_t text) const {
    need(text < entry_numbers_.size() && entry_numbers_[text] != DcpStorage::kNoEntry);
    return entry_numbers_[text];
  }

  void read_entries(const std::vector<Item>& pairs) {
    entry_numbers_.assign(texts_.size(), DcpStorage::kNoEntry);
    out_.entries.reserve(pairs.size() / 2);
    for (std::size_t i = 0; i < pairs.size(); i += 2) {
      DcpEntry entry;
      entry.name = text_of(pairs[i]);
      std::uint32_t& number = entry_numbers_[pairs[i].a];
      need(number == DcpStorage::kNoEntry);
      number = static_cast<std::uint32_t>(out_.entries.size());
      entry.path.push_back(key_item(entry.name));
      if (pairs[i + 1].kind != Kind::kBytes) {
        need(pairs[i + 1].kind == Kind::kTensor);
        fill(entry, tensors_[pairs[i + 1].a]);
      }
      out_.entries.push_back(std::move(entry));
    }
  }

  void fill(DcpEntry& entry, const TensorMeta& tensor) const {
    const Properties& properties = properties_[tensor.properties];
    const Size size = size_of(tensor.size);
    need(properties.dtype.has_value());
    entry.is_tensor = true;
    entry.requires_grad = properties.requires_grad;
    entry.spec.dtype = *properties.dtype;
    entry.spec.shape = Shape::checked(std::span(out_.coordinates).subspan(size.first, size.count));
    entry.spec.size_bytes();  // throws on overflow
    entry.first_coordinate = tensor.first_coordinate;
    entry.chunk_count = tensor.chunk_count;
  }

  void read_paths(const std::vector<Item>& pairs) {
    out_.has_planner_data = true;
    for (std::size_t i = 0; i < pairs.size(); i += 2) {
      const std::string& name = text_of(pairs[i]);
      const std::span<const Item> steps = items_of(pairs[i + 1]);
      need(steps.size() <= static_cast<std::size_t>(kMaxValueDepth));
      Path path;
      for (const Item& step : steps) {
        PathItem& item = path.emplace_back();
        if (step.kind == Kind::kText) {
          item.key = text_of(step);
        } else {
          need(step.kind == Kind::kInt && step.n >= 0);
          item.kind = PathItem::Kind::kIndex;
          item.index = step.n;
        }
      }
      need(dotted(path) == name);
      out_.entries[entry_of(pairs[i].a)].path = std::move(path);
    }
  }

  PlainStream in_;
  DcpMetadata& out_;
  bool stopped_ = false;
  std::uint64_t most_copied_ = 0;
  Stack stack_;
  std::vector<std::size_t> marks_;
  std::vector<std::uint32_t> memo_;
  std::deque<std::string> texts_;  // each once
  std::unordered_map<std::string_view, std::uint32_t> text_numbers_;
  std::vector<Global> globals_;
  std::unordered_map<std::string, std::uint32_t> global_numbers_;
  std::vector<std::uint64_t> sizes_;
  std::vector<Item> pool_;  // of tuples
  std::vector<std::vector<Item>> dicts_, lists_;
  std::vector<std::uint32_t> free_dicts_;
  std::vector<Properties> properties_;
  std::vector<TensorMeta> tensors_;
  std::vector<Info> infos_;
  std::optional<std::uint32_t> storage_dict_;
  std::vector<std::uint32_t> file_numbers_;   // by text
  std::vector<std::uint32_t> entry_numbers_;  // by text
};

void PlainReader::step(std::uint8_t opcode) {
  switch (opcode) {
    case 0x80:
      need(in_.position() == 1 && in_.byte() <= 5);
      break;
    case 0x95:  // frames are as the pickler's buffer was: nothing depends on them
      need(in_.number<std::uint64_t>() <= in_.left());
      break;
    case '(':
      marks_.push_back(stack_.size());
      break;
    case '.':
      finish(pop());
      break;
    case 'N':
      push({});
      break;
    case 0x88:
    case 0x89:
      push({Kind::kBool, 0, opcode == 0x88});
      break;
    case 'J':
      push_integer(in_.number<std::int32_t>());
      break;
    case 'K':
      push_integer(in_.byte());
      break;
    case 'M':
      push_integer(in_.number<std::uint16_t>());
      break;
    case 0x8a: {
      const std::string_view bytes = in_.text(in_.byte());
      need(!bytes.empty() && bytes.size() <= 8);
      std::uint64_t bits = bytes.back() & 0x80 ? ~std::uint64_t{0} : 0;
      std::memcpy(&bits, bytes.data(), bytes.size());
      push_integer(static_cast<std::int64_t>(bits));
      break;
    }
    case 0x8c:
      push_text(in_.text(in_.byte()));
      break;
    case 'X':
      push_text(in_.text(in_.number<std::uint32_t>()));
      break;
    case 'c': {
      const std::string module(in_.line());
      push_global(module, in_.line());
      break;
    }
    case 0x93: {
      const Item name = pop(), module = pop();
      push_global(text_of(module), text_of(name));
      break;
    }
    case ')':
      push({Kind::kTuple, 0, static_cast<std::int64_t>(pool_.size())});
      break;
    case '}':
      push_dict();
      break;
    case ']':
      push({Kind::kList, new_in(lists_), 0});
      break;
    case 't':
      tuple_from_mark();
      break;
    case 0x85:
    case 0x86:
    case 0x87:
      tuple_n(opcode - std::size_t{0x84});
      break;
    case 'a':
      need(stack_.size() >= floor() + 2);
      append_from(stack_.size() - 1);
      stack_.shrink(stack_.size() - 1);
      break;
    case 'e':
      append_from(mark_begin());
      drop_to_mark();
      break;
    case 's':
      need(stack_.size() >= floor() + 3);
      set_from(stack_.size() - 2);
      stack_.shrink(stack_.size() - 2);
      break;
    case 'u':
      set_from(mark_begin());
      drop_to_mark();
      break;
    case 'R':
      call();
      break;
    case 0x81:
      new_object();
      break;
    case 'b':
      build();
      break;
    case 0x94:
      memo_put(memo_.size());
      break;
    case 'q':
      memo_put(in_.byte());
      break;
    case 'r':
      memo_put(in_.number<std::uint32_t>());
      break;
    case 'h':
      memo_get(in_.byte());
      break;
    case 'j':
      memo_get(in_.number<std::uint32_t>());
      break;
    default:
      leave();
  }
}

}  // namespace plain

std::optional<DcpMetadata> read_plain_metadata(const ByteWindow& window, std::string_view file) {
  DcpMetadata out;
  try {
    plain::PlainReader(window, out).run();
  } catch (const LeaveIt&) {
    return std::nullopt;
  } catch (const Error& error) {
    if (error.code() == Code::kIo) throw;
    return std::nullopt;
  }
  for (GlobalUse& use : out.globals) use.file = std::string(file);
  return out;
}

}  // namespace tessera::dcp
