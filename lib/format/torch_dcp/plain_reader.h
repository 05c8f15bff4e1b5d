#pragma once
// The machine that reads `.metadata` the short way: its stack, memo and pools here; the opcodes in
// plain_opcodes.cc, the objects they build in plain_objects.cc, the whole in plain_metadata.cc.
#include <tessera/base/checked.h>
#include <tessera/base/large_array.h>
#include <tessera/encoding/pickle_globals.h>

#include <algorithm>
#include <array>
#include <deque>
#include <unordered_map>

#include "lib/encoding/utf8.h"
#include "lib/format/torch_dcp/metadata.h"
#include "lib/format/torch_dcp/plain_items.h"
#include "lib/format/torch_dcp/plain_stream.h"

namespace tessera::dcp::plain {

/// One file's records, as the opcodes make them.
class PlainReader {
 public:
  PlainReader(const ByteWindow& window, DcpMetadata& out) : in_(window), out_(out) {
    // Only what is filled takes memory: no record is shorter than this.
    reserve_large(out_.coordinates, static_cast<std::size_t>(window.length / 16));
    reserve_large(out_.storage, static_cast<std::size_t>(window.length / 64));
    reserve_large(sizes_, static_cast<std::size_t>(window.length / 32));
    reserve_large(memo_, static_cast<std::size_t>(window.length / 6));
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

  void push_global(std::string_view raw_module, std::string_view raw_name);

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
  void tuple_from(std::size_t begin);
  void tuple_n(std::size_t n);
  void tuple_from_mark();
  /// What stands below the mark at `begin` is no other mark's.
  void need_below(std::size_t begin) const;
  void append_from(std::size_t begin);
  void set_from(std::size_t begin);
  void call();
  /// A pathlib path, from its parts.
  void push_path(const Item& parts);
  /// Packed: place of the first number, then how many there are.
  static constexpr int kCountBits = 8;
  static_assert(kMaxRank < 1 << kCountBits);
  Size size_of(std::size_t number) const {
    const std::uint64_t word = sizes_[number];
    return {word >> kCountBits, static_cast<std::uint32_t>(word & ((1u << kCountBits) - 1))};
  }
  void push_size(const Item& numbers);
  void new_object();

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
  void free_dict(std::uint32_t number);
  void build();
  void build_properties(Properties& properties, const Item& state);
  Item chunk(std::uint32_t dict);
  /// Sizes that chunks share, one after the other at the end.
  std::uint64_t join(const Size& origin, const Size& extents);
  void copy_coordinates(std::uint64_t from, std::uint64_t count);
  Item index(std::uint32_t dict);
  Item info(std::uint32_t dict);
  Item tensor(std::uint32_t dict);
  void storage_meta(std::uint32_t dict);
  void add_storage(std::uint32_t dict, std::span<const Item> pairs);
  std::uint32_t file(std::uint32_t text);

  // ---- the whole

  void finish(const Item& root);
  std::uint32_t entry_of(std::uint32_t text) const;
  void read_entries(const std::vector<Item>& pairs);
  void fill(DcpEntry& entry, const TensorMeta& tensor) const;
  void read_paths(const std::vector<Item>& pairs);

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

}  // namespace tessera::dcp::plain
