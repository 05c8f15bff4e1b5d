#pragma once
// The unpickler's stack as far as judging needs it (pickle_scan.h); the opcodes are in
// pickle_scan_opcodes.cc.
#include <tessera/encoding/pickle_globals.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lib/encoding/pickle_text.h"
#include "lib/encoding/safety/pickle_scan.h"
#include "lib/encoding/safety/pickle_scan_item.h"
#include "lib/encoding/safety/pickle_scan_reader.h"

namespace tessera::scan {

class PickleScanMachine {
 public:
  PickleScanMachine(ScanReader& in, PickleScan& out) : in_(in), out_(out) {
    pool_.push_back({.kind = Kind::kInteger});
    tuples_ = {{0, 0, false}, {0, 1, false}};
  }

  /// One pickle; true: it ended with STOP.
  bool run() {
    try {
      while (!stopped_) {
        at_ = in_.position();
        if (!step(in_.byte())) break;
        if (stack_.size() + memo_.size() + pool_.size() > kMostItems) {
          broken("more values than are looked at");
          break;
        }
      }
    } catch (const StreamEnds&) {
      broken("it ends early");
    }
    for (const Global& global : globals_)
      if (!global.used) add(global.full(), GlobalRole::kNamed, named(global), global.offset);
    return stopped_;
  }

  bool is_broken() const { return !problem_.empty(); }
  const std::string& problem() const { return problem_; }

 private:
  using Kind = Item::Kind;

  static Safety named(const Global& g) {
    return judge_global(g.module, g.name, GlobalRole::kNamed);
  }

  void broken(std::string_view why) {
    if (problem_.empty()) problem_ = std::string(why) + " at byte " + std::to_string(at_);
  }

  void add(std::string name, GlobalRole role, Safety safety, std::uint64_t offset) {
    const auto found = seen_.find(name + static_cast<char>(role));
    if (found != seen_.end()) {
      Safety& known = out_.uses[found->second].safety;
      known = std::max(known, safety);
      return;
    }
    if (out_.uses.size() >= PickleScan::kMostUses &&
        (safety != Safety::kDangerous || out_.uses.size() >= 2 * PickleScan::kMostUses))
      return;
    seen_.emplace(name + static_cast<char>(role), out_.uses.size());
    out_.uses.push_back({std::move(name), role, safety, offset});
  }

  // The stack.
  void push(Item item) { stack_.push_back(item); }
  void push(Kind kind) { push(Item{.kind = kind}); }
  std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  Item pop() {
    if (stack_.size() <= floor()) {
      broken("the stack is empty");
      return {};
    }
    const Item item = stack_.back();
    stack_.pop_back();
    return item;
  }
  Item top() {
    if (stack_.size() > floor()) return stack_.back();
    broken("the stack is empty");
    return {};
  }
  std::vector<Item> pop_to_mark() {
    if (marks_.empty()) broken("no mark on the stack");
    const std::vector<Item> items(stack_.begin() + static_cast<std::ptrdiff_t>(floor()),
                                  stack_.end());
    drop_to_mark();
    return items;
  }
  void drop_to_mark() {
    stack_.resize(floor());
    if (!marks_.empty()) marks_.pop_back();
  }

  static bool matters(const Item& item) {
    return (item.kind >= Kind::kBytes && item.kind != Kind::kTuple) ||
           (item.kind == Kind::kText && item.spelling == Item::Spelling::kTooLong);
  }
  /// Most tuples are shapes and the like: those that no judgement can depend on are all one.
  void push_tuple(std::span<const Item> items) {
    Item item{.kind = Kind::kTuple, .index = kDullTuple};
    const bool is_encoding =
        items.size() == 2 && items[0].kind == Kind::kText && items[1].kind == Kind::kText;
    if (!is_encoding && !std::ranges::any_of(items, matters)) {
      if (items.size() == 1 && items[0].kind == Kind::kInteger) item.index = kIntegerTuple;
      return push(item);
    }
    item.index = static_cast<std::uint32_t>(tuples_.size());
    Tuple tuple{static_cast<std::uint32_t>(pool_.size()), 0, items.size() > kMostArguments};
    items = items.first(std::min(items.size(), kMostArguments));
    tuple.count = static_cast<std::uint32_t>(items.size());
    pool_.insert(pool_.end(), items.begin(), items.end());
    tuples_.push_back(tuple);
    push(item);
  }
  template <std::size_t n>
  void tuple_of() {
    std::array<Item, n> items;
    for (std::size_t i = n; i-- > 0;) items[i] = pop();
    push_tuple(items);
  }
  std::span<const Item> items_of(const Tuple& tuple) const {
    return std::span(pool_).subspan(tuple.first, tuple.count);
  }

  // Texts.
  void push_text(std::uint64_t length) {
    const std::uint64_t position = in_.position();
    in_.skip(length);
    push_text_at(position, length, Item::Spelling::kRaw);
  }
  void push_text_at(std::uint64_t position, std::uint64_t length, Item::Spelling spelling) {
    Item item{.kind = Kind::kText, .spelling = spelling, .position = position};
    if (length <= kMostNameBytes) {
      item.length = static_cast<std::uint16_t>(length);
    } else {
      item.spelling = Item::Spelling::kTooLong;
      if (spelling == Item::Spelling::kRaw) item.index = add_blob({position, length, true});
    }
    push(item);
  }
  void push_line_text(Item::Spelling spelling) {
    const std::uint64_t position = in_.position();
    in_.line(0);
    push_text_at(position, in_.position() - position - 1, spelling);
  }
  std::optional<std::string> text_of(const Item& item) const {
    if (item.kind != Kind::kText || item.spelling == Item::Spelling::kTooLong) return std::nullopt;
    const Bytes bytes = in_.window().read(item.position, item.length);
    const std::string raw(as_text(bytes));
    if (item.spelling == Item::Spelling::kQuoted) return parse_python_string(raw);
    if (item.spelling == Item::Spelling::kEscaped) return parse_raw_unicode_escape(raw);
    return raw;
  }
  std::uint32_t add_blob(const PickledBytes& bytes) {
    blobs_.push_back(bytes);
    return static_cast<std::uint32_t>(blobs_.size() - 1);
  }
  void push_bytes(std::uint64_t length) {
    push(Item{.kind = Kind::kBytes, .index = add_blob({in_.position(), length, false})});
    in_.skip(length);
  }

  // Globals and calls.
  void push_global(const std::string& raw_module, const std::string& raw_name) {
    if (!is_plausible_name(raw_module) || !is_plausible_name(raw_name)) {
      broken("a global that is no name");
      return push(Kind::kOther);
    }
    const auto [module, name] = canonical_global(raw_module, raw_name);
    const auto [found, is_new] =
        interned_.try_emplace(std::string(module) + "\n" + std::string(name), globals_.size());
    if (is_new) globals_.push_back({std::string(module), std::string(name), at_, false});
    push(Item{.kind = Kind::kGlobal, .index = static_cast<std::uint32_t>(found->second)});
  }
  void stack_global() {
    const Item name = pop();
    const Item module = pop();
    const auto module_text = text_of(module), name_text = text_of(name);
    if (module_text && name_text) return push_global(*module_text, *name_text);
    // Python wants two strings, and takes what a call of str made.
    add("(a computed name)", GlobalRole::kNamed, Safety::kDangerous, at_);
    push(Kind::kUnknown);
  }

  CallArgument argument(const Item& item, std::vector<std::string>& texts) const {
    CallArgument out;
    switch (item.kind) {
      case Kind::kInteger:
        out.kind = CallArgument::Kind::kInteger;
        break;
      case Kind::kText:
        if (auto text = text_of(item)) {
          texts.push_back(std::move(*text));
          out.kind = CallArgument::Kind::kText;
          out.name = texts.back();
        }
        break;
      case Kind::kGlobal:
        out.kind = CallArgument::Kind::kGlobal;
        out.module = globals_[item.index].module;
        out.name = globals_[item.index].name;
        break;
      case Kind::kCall:
      case Kind::kPersistent:
      case Kind::kUnknown:
        out.kind = CallArgument::Kind::kComputed;
        break;
      default:
        break;
    }
    return out;
  }

  void call(const Item& callable, const Item& arguments, GlobalRole role) {
    if (callable.kind == Kind::kClass) return push(Item{.kind = Kind::kCall});
    if (callable.kind != Kind::kGlobal) {
      if (callable.kind == Kind::kCall || callable.kind == Kind::kPersistent ||
          callable.kind == Kind::kUnknown) {
        add(kComputed, role, Safety::kDangerous, at_);
      } else {
        broken("a call of what is no global");
      }
      return push(Item{.kind = Kind::kCall});
    }
    Item result{.kind = Kind::kCall, .index = callable.index};
    Global& global = globals_[callable.index];
    global.used = true;
    std::vector<CallArgument> known;
    std::vector<std::string> texts;
    texts.reserve(kMostArguments);
    const Tuple* tuple = arguments.kind == Kind::kTuple ? &tuples_[arguments.index] : nullptr;
    if (tuple != nullptr && !tuple->cut)
      for (const Item& item : items_of(*tuple)) known.push_back(argument(item, texts));
    Judgement judged = judge_call(global.module, global.name, role,
                                  tuple != nullptr && !tuple->cut
                                      ? std::optional(std::span<const CallArgument>(known))
                                      : std::nullopt);
    if (reads_archive(global, tuple)) judged.safety = Safety::kUnknown;
    const bool is_getattr = global.module == "builtins" && global.name == "getattr";
    if (is_getattr && judged.safety == Safety::kSafe && judged.role == GlobalRole::kCalled)
      result.kind = Kind::kClass;
    if (global.module == "_codecs" && global.name == "encode" && tuple != nullptr &&
        tuple->count > 0)
      result = encoded(pool_[tuple->first]);
    add(std::move(judged.name), judged.role, judged.safety, at_);
    push(result);
  }
  /// Protocol 2 has no bytes: _codecs.encode(text, "latin1") makes them.
  Item encoded(const Item& text) {
    if (text.kind != Kind::kText) return Item{.kind = Kind::kCall};
    if (text.spelling == Item::Spelling::kRaw)
      return {.kind = Kind::kBytes, .index = add_blob({text.position, text.length, true})};
    return {.kind = Kind::kBytes, .index = text.index};
  }
  /// torch.storage._load_from_bytes(b"..."): a tensor in a pickle that torch.save did not write.
  /// Its archive is looked at by itself.
  bool reads_archive(const Global& global, const Tuple* tuple) {
    if (global.module != "torch.storage" || global.name != "_load_from_bytes" || !tuple ||
        tuple->count != 1 || pool_[tuple->first].kind != Kind::kBytes ||
        pool_[tuple->first].index == kNoIndex)
      return false;
    out_.archives.push_back(blobs_[pool_[tuple->first].index]);
    return true;
  }
  void call_with(GlobalRole role) {
    const Item arguments = pop();
    const Item callable = pop();
    call(callable, arguments, role);
  }
  void call_items(const Item& callable, std::span<const Item> items) {
    push_tuple(items);
    const Item arguments = pop();
    call(callable, arguments, GlobalRole::kCalled);
  }
  void instance() {  // INST
    std::string module = in_.line(kMostNameBytes);
    push_global(module, in_.line(kMostNameBytes));
    const Item callable = pop();
    call_items(callable, pop_to_mark());
  }
  void object() {  // OBJ
    const std::vector<Item> items = pop_to_mark();
    if (items.empty()) return broken("OBJ without a class"), push(Kind::kOther);
    call_items(items.front(), std::span(items).subspan(1));
  }

  /// State, items or keys are set on `target`: on an object of its own no matter.
  void change(const Item& target) {
    if (target.kind == Kind::kUnknown)
      return add(kComputed, GlobalRole::kChanged, Safety::kDangerous, at_);
    const bool is_global = target.kind == Kind::kGlobal || target.kind == Kind::kClass;
    const bool is_shared =
        target.kind == Kind::kCall && target.index != kNoIndex &&
        gives_shared_object(globals_[target.index].module, globals_[target.index].name);
    if (!is_global && !is_shared) return;
    if (target.index == kNoIndex)
      return add(kComputed, GlobalRole::kChanged, Safety::kDangerous, at_);
    Global& global = globals_[target.index];
    global.used = true;
    add(global.full(), GlobalRole::kChanged, Safety::kDangerous, at_);
  }
  void add_all() {
    drop_to_marked_items();
    change(top());
  }
  void drop_to_marked_items() {
    if (marks_.empty()) broken("no mark on the stack");
    drop_to_mark();
  }

  void persistent(const Item& id) {
    if (id.kind == Kind::kTuple && tuples_[id.index].count == 4) {
      const auto items = items_of(tuples_[id.index]);
      // PyTorch before 1.6: ("module", class, file, source) stands for the class.
      if (items[0].kind == Kind::kText && items[1].kind == Kind::kGlobal) return push(items[1]);
    }
    push(Kind::kPersistent);
  }
  void extension(int bytes) {
    add("(code " + std::to_string(in_.number(bytes)) + " of copyreg's extension registry)",
        GlobalRole::kNamed, Safety::kUnknown, at_);
    push(Kind::kUnknown);
  }

  // The memo.
  void put(std::uint64_t index) {
    const Item item = top();
    if (index <= 2 * memo_.size() + 1024) {
      if (index >= memo_.size()) memo_.resize(index + 1, Item{.kind = Kind::kUnknown, .length = 1});
      memo_count_ += memo_[index].kind == Kind::kUnknown && memo_[index].length == 1;
      memo_[index] = item;
    } else {
      memo_count_ += far_memo_.insert_or_assign(index, item).second;
    }
  }
  void get(std::uint64_t index) {
    const auto far = far_memo_.find(index);
    if (far != far_memo_.end()) return push(far->second);
    const bool known =
        index < memo_.size() && !(memo_[index].kind == Kind::kUnknown && memo_[index].length == 1);
    if (!known) broken("a memo slot that was never written");
    push(known ? memo_[index] : Item{.kind = Kind::kUnknown});
  }
  std::uint64_t line_number() {
    const std::string line = in_.line(32);
    std::uint64_t out = 0;
    const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), out);
    if (error != std::errc() || end != line.data() + line.size()) broken("a memo index");
    return out;
  }

  bool step(std::uint8_t opcode);

  ScanReader& in_;
  PickleScan& out_;
  bool stopped_ = false;
  std::uint64_t at_ = 0;
  std::string problem_;
  std::vector<Item> stack_, memo_, pool_;
  std::unordered_map<std::uint64_t, Item> far_memo_;
  std::uint64_t memo_count_ = 0;
  std::vector<std::size_t> marks_;
  std::vector<Tuple> tuples_;
  std::vector<Global> globals_;
  std::unordered_map<std::string, std::size_t> interned_, seen_;
  std::vector<PickledBytes> blobs_;
};

}  // namespace tessera::scan
