#include "lib/encoding/pickle_vm.h"

#include <fmt/format.h>
#include <tessera/base/checked.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/encoding/pickle_globals.h>

#include <algorithm>
#include <bit>
#include <charconv>

#include "lib/encoding/pickle_number.h"
#include "lib/encoding/utf8.h"

namespace tessera {
namespace {

constexpr PickleGraph::Node kAbsent = 0xffffffff;

}  // namespace

PickleVm::PickleVm(ByteView bytes, const PickleOptions& options)
    : bytes_(bytes), options_(options), rep_(std::make_shared<PickleGraph::Rep>()) {
  // Real streams spend 6 and more bytes per node; only pages that are touched count.
  rep_->nodes.reserve(bytes.size() / 4 + 8);
  rep_->children.reserve(bytes.size() / 4 + 8);
  rep_->stream_bytes = bytes.size();
  none_ = add({});
  true_ = add({.kind = PickleKind::kBool, .b = 1});
  false_ = add({.kind = PickleKind::kBool});
  empty_tuple_ = add({.kind = PickleKind::kTuple});
  getattr_ = kAbsent;
}

void PickleVm::corrupt(std::string_view what) const {
  fail(Code::kCorrupt, fmt::format("pickle: {} at byte {}", what, opcode_at_));
}

void PickleVm::ends_early(std::uint64_t missing_bytes, std::string_view what) {
  needed_bytes_ = checked_add(std::uint64_t{bytes_.size()}, missing_bytes).value_or(UINT64_MAX);
  corrupt(what);
}

std::string_view PickleVm::take(std::uint64_t length, std::string_view what) {
  const std::uint64_t left = bytes_.size() - position_;
  if (length > left)
    ends_early(length - left, fmt::format("{} of {} bytes where {} are left", what, length, left));
  const std::string_view out = as_text(bytes_.subspan(position_, length));
  position_ += length;
  return out;
}

std::string_view PickleVm::take_line() {
  const std::string_view rest = as_text(bytes_.subspan(position_));
  const std::size_t end = rest.find('\n');
  if (end == std::string_view::npos) ends_early(1, "a text argument without its line end");
  position_ += end + 1;
  return rest.substr(0, end);
}

PickleVm::Node PickleVm::pop() {
  const Node node = top();
  stack_.pop_back();
  return node;
}

PickleVm::Node PickleVm::top() const {
  const std::size_t floor = marks_.empty() ? 0 : marks_.back();
  if (stack_.size() <= floor) corrupt("the stack is empty");
  return stack_.back();
}

std::span<const PickleVm::Node> PickleVm::since_mark() const {
  if (marks_.empty()) corrupt("no mark on the stack");
  return std::span(stack_).subspan(marks_.back());
}

void PickleVm::drop_to_mark() {
  stack_.resize(marks_.back());
  marks_.pop_back();
}

PickleVm::Node PickleVm::add(const PickleNode& node) {
  if (rep_->nodes.size() >= kAbsent) fail(Code::kUnsupported, "pickle: more than 2^32 nodes");
  rep_->nodes.push_back(node);
  return static_cast<Node>(rep_->nodes.size() - 1);
}

void PickleVm::push_number(PickleKind kind, std::uint64_t bits) {
  PickleNode node{.kind = kind};
  node.set_wide(bits);
  push(add(node));
}

void PickleVm::push_integer(std::int64_t value) {
  if (value < 0 || value > 255)
    return push_number(PickleKind::kInt, static_cast<std::uint64_t>(value));
  if (small_integers_.empty()) small_integers_.assign(256, kAbsent);
  Node& shared = small_integers_[static_cast<std::size_t>(value)];
  if (shared == kAbsent)
    shared = add({.kind = PickleKind::kInt, .b = static_cast<std::uint32_t>(value)});
  push(shared);
}

void PickleVm::push_text(PickleKind kind, std::string_view text) {
  PickleNode node{.kind = kind,
                  .high = static_cast<std::uint16_t>(text.size() >> 32),
                  .a = static_cast<std::uint32_t>(text.size())};
  node.set_wide(rep_->text.size());
  rep_->text.append(text);
  push(add(node));
}

void PickleVm::push_string(std::string_view utf8) {
  if (!is_python_utf8(utf8)) corrupt("a string that is not UTF-8");
  push_text(PickleKind::kString, utf8);
}

void PickleVm::push_python2_string(std::string_view bytes) {
  push_text(is_python_utf8(bytes) ? PickleKind::kString : PickleKind::kBytes, bytes);
}

void PickleVm::push_long(std::string_view little_endian) {
  if (little_endian.empty()) return push_integer(0);
  const char filler = little_endian.back() & 0x80 ? '\xff' : '\0';
  while (little_endian.size() > 8 && little_endian.back() == filler &&
         ((little_endian[little_endian.size() - 2] ^ filler) & 0x80) == 0)
    little_endian.remove_suffix(1);
  if (little_endian.size() > kMaxLongBytes)
    corrupt(fmt::format("an integer of {} bytes (limit {})", little_endian.size(), kMaxLongBytes));
  if (little_endian.size() > 8)
    return push_text(PickleKind::kBigInt, decimal_from_twos_complement(little_endian));
  std::uint64_t bits = filler ? ~std::uint64_t{0} : 0;
  std::memcpy(&bits, little_endian.data(), little_endian.size());
  push_integer(static_cast<std::int64_t>(bits));
}

/// Python's unpicklers read such a text as they read source code: 010 is eight in the one that is
/// written in C and an error in the other, 0x10 and 1_0 are numbers, +1 after I is true. No pickler
/// writes any of them.
void PickleVm::check_decimal(std::string_view decimal) const {
  const std::string_view digits = decimal.substr(decimal.starts_with('-') ? 1 : 0);
  const bool canonical = is_decimal_integer(decimal) && !decimal.starts_with('+') &&
                         (digits.front() != '0' || decimal == "0");
  if (!canonical) corrupt(fmt::format("\"{}\" is no integer", printable(decimal)));
}

void PickleVm::push_decimal(std::string_view decimal) {
  check_decimal(decimal);
  if (decimal.size() > kMaxLongDigits)
    corrupt(fmt::format("an integer of {} digits (limit {})", decimal.size(), kMaxLongDigits));
  std::int64_t value = 0;
  const char* end = decimal.data() + decimal.size();
  const auto [last, error] = std::from_chars(decimal.data(), end, value);
  if (error == std::errc() && last == end) return push_integer(value);
  push_long(twos_complement_from_decimal(decimal));
}

PickleRun PickleVm::extend(PickleRun run, std::span<const Node> more) {
  auto& pool = rep_->children;
  const std::uint64_t count = run.count + static_cast<std::uint64_t>(more.size());
  if (count > 0x7fffffff) fail(Code::kUnsupported, "pickle: a container of more than 2^31 items");
  const bool at_end = run.offset + run.count == pool.size();
  const bool fits = run.grown && count <= std::bit_ceil(run.count);
  if (run.count == 0) {
    run.offset = pool.size();
  } else if (!fits && !at_end) {
    const std::uint64_t from = run.offset;
    run.offset = pool.size();
    run.grown = true;
    pool.resize(run.offset + std::bit_ceil(count));
    std::copy_n(pool.begin() + static_cast<std::ptrdiff_t>(from), run.count,
                pool.begin() + static_cast<std::ptrdiff_t>(run.offset));
  } else if (!fits) {
    run.grown = false;  // it ends the pool and simply goes on
  }
  if (pool.size() < run.offset + count) pool.resize(run.offset + count);
  std::copy(more.begin(), more.end(),
            pool.begin() + static_cast<std::ptrdiff_t>(run.offset + run.count));
  run.count = static_cast<std::uint32_t>(count);
  return run;
}

void PickleVm::push_sequence(PickleKind kind, std::span<const Node> items) {
  const PickleRun run = extend({}, items);
  PickleNode node{.kind = kind, .a = run.count};
  node.set_wide(run.offset);
  const Node made = add(node);
  push(made);
}

PickleExtra& PickleVm::extra(Node node) {
  rep_->nodes[node].flags |= PickleNode::kHasExtra;
  return rep_->extras[node];
}

bool PickleVm::is_known_callable(Node callable) const {
  const PickleNode& node = rep_->nodes[callable];
  return node.kind == PickleKind::kGlobal && rep_->globals[node.a].known;
}

/// The state that some functions of torch take with the other arguments is set on the result by
/// reference, as BUILD does it.
void PickleVm::consume_arguments(Node callable, Node arguments) {
  if (!is_known_callable(callable)) return consume(arguments, Consumer::kOpaqueCall);
  const std::string_view name = rep_->globals[rep_->nodes[callable].a].name;
  const PickleNode& tuple = rep_->nodes[arguments];
  const bool has_state = tuple.a > 3 && (name.starts_with("_rebuild_from_type") ||
                                         name == "_rebuild_parameter_with_state");
  if (!has_state) return consume(arguments, Consumer::kKnownCall);
  for (std::uint32_t i = 0; i < tuple.a; ++i) {
    const Node argument = rep_->run({tuple.wide(), tuple.a, false})[i];
    consume(argument, i < 3 ? Consumer::kKnownCall : Consumer::kKnownState);
  }
}

/// Marks what a call sees at once: containers that `node` is or holds in tuples and, where we know
/// what the call makes of them, also lists in a list (the pairs of an OrderedDict) and objects that
/// it copies. What lies deeper is kept by reference and may grow, as a pickler does it with objects
/// that refer to each other.
void PickleVm::consume(Node node, Consumer consumer) {
  const bool known = consumer != Consumer::kOpaqueCall;
  const std::uint8_t mark =
      static_cast<std::uint8_t>(PickleNode::kConsumed | (known ? PickleNode::kConsumedKnown : 0));
  to_consume_.assign(1, node);
  while (!to_consume_.empty()) {
    PickleNode& next = rep_->nodes[to_consume_.back()];
    to_consume_.pop_back();
    const bool call = next.kind == PickleKind::kReduce || next.kind == PickleKind::kNewObj;
    const bool holds = next.kind == PickleKind::kTuple || next.kind == PickleKind::kList;
    if (call ? consumer != Consumer::kKnownCall
             : !holds && next.kind != PickleKind::kDict && next.kind != PickleKind::kSet)
      continue;
    if ((next.flags & mark) == mark) continue;
    next.flags |= mark;
    if (!holds) continue;
    const auto items = rep_->run({next.wide(), next.a, false});
    if (next.kind == PickleKind::kTuple) {
      to_consume_.insert(to_consume_.end(), items.begin(), items.end());
    } else if (known) {
      for (const Node item : items)
        if (kind(item) == PickleKind::kList) rep_->nodes[item].flags |= mark;
    }
  }
}

void PickleVm::check_not_consumed(Node target) {
  const std::uint8_t flags = rep_->nodes[target].flags;
  if (flags & PickleNode::kConsumedKnown)
    corrupt("a change to an object that a call has already used");
  if (flags & PickleNode::kConsumed)
    fail(Code::kUnsupported,
         fmt::format(
             "pickle: a container that grows after it was passed to a class of unknown meaning, "
             "at byte {}",
             opcode_at_));
}

void PickleVm::append_to(Node target, std::span<const Node> items) {
  const PickleKind k = kind(target);
  check_grown(target);
  if (k == PickleKind::kReduce || k == PickleKind::kNewObj) {
    PickleRun& run = extra(target).items;
    run = extend(run, items);
    return;
  }
  if (k != PickleKind::kList && k != PickleKind::kSet) corrupt("items added to what is no list");
  PickleNode& node = rep_->nodes[target];
  const PickleRun run =
      extend({node.wide(), node.a, (node.flags & PickleNode::kGrown) != 0}, items);
  node.set_wide(run.offset);
  node.a = run.count;
  node.flags = run.grown ? PickleNode::kGrown : 0;
}

void PickleVm::set_in(Node target, std::span<const Node> pairs) {
  if (pairs.size() % 2) corrupt("a key without its value");
  const PickleKind k = kind(target);
  check_grown(target);
  if (k == PickleKind::kReduce || k == PickleKind::kNewObj) {
    PickleRun& run = extra(target).dict_items;
    run = extend(run, pairs);
    return;
  }
  if (k != PickleKind::kDict) corrupt("keys set in what is no dict");
  PickleNode& node = rep_->nodes[target];
  const PickleRun run =
      extend({node.wide(), node.a, (node.flags & PickleNode::kGrown) != 0}, pairs);
  node.set_wide(run.offset);
  node.a = run.count;
  node.flags = run.grown ? PickleNode::kGrown : 0;
}

void PickleVm::push_global(std::string_view raw_module, std::string_view raw_name) {
  const auto [module, name] = canonical_global(raw_module, raw_name);
  if (!is_python_utf8(module) || !is_python_utf8(name)) corrupt("a global that is not UTF-8");
  const auto [found, is_new] = interned_globals_.try_emplace(fmt::format("{}\n{}", module, name));
  if (!is_new) return push(found->second);
  const GlobalUse::Verdict verdict = classify_global(module, name);
  if (verdict == GlobalUse::Verdict::kDenied && !options_.collect_denied)
    corrupt(fmt::format("refused as unsafe: global {}.{}", printable(module), printable(name)));
  found->second =
      add({.kind = PickleKind::kGlobal, .a = static_cast<std::uint32_t>(rep_->globals.size())});
  rep_->globals.push_back(
      {std::string(module), std::string(name), verdict == GlobalUse::Verdict::kKnown});
  if (options_.globals)
    options_.globals->push_back({fmt::format("{}.{}", module, name), verdict, {}});
  if (module == "builtins" && name == "getattr") {
    getattr_ = found->second;
    getattr_at_ = opcode_at_;
  }
  push(found->second);
}

void PickleVm::deny_getattr(std::size_t at) {
  if (!options_.collect_denied) {
    fail(Code::kCorrupt,
         fmt::format("pickle: refused as unsafe: global builtins.getattr at byte {}", at),
         "for a member of an enum (Python 3.11.0 to 3.11.3 pickle them so; one whose class stands "
         "by "
         "itself in its module is kept): save the file again with another Python, or store its "
         ".value");
  }
  if (!options_.globals) return;
  for (GlobalUse& use : *options_.globals) {
    if (use.name == "builtins.getattr") use.verdict = GlobalUse::Verdict::kDenied;
  }
}

std::optional<PickleVm::Getattr> PickleVm::getattr_pair(Node arguments) const {
  const PickleNode& tuple = rep_->nodes[arguments];
  const auto items = rep_->run({tuple.wide(), tuple.a, false});
  if (items.size() != 2 || kind(items[0]) != PickleKind::kGlobal ||
      kind(items[1]) != PickleKind::kString)
    return std::nullopt;
  const PickleNode& attribute = rep_->nodes[items[1]];
  return Getattr{&rep_->globals[rep_->nodes[items[0]].a],
                 std::string_view(rep_->text).substr(attribute.wide(), attribute.length())};
}

bool PickleVm::is_getattr_result(Node node) const {
  const PickleKind k = kind(node);
  return (k == PickleKind::kReduce || k == PickleKind::kNewObj) && getattr_ != kAbsent &&
         rep_->nodes[node].a == getattr_;
}

void PickleVm::check_getattr(PickleKind call, Node arguments) {
  getattr_was_called_ = true;
  const auto pair = getattr_pair(arguments);
  if (call != PickleKind::kReduce || !pair ||
      !(is_allowed_getattr(pair->owner->module, pair->owner->name, pair->attribute) ||
        is_enum_member(pair->owner->module, pair->owner->name, pair->attribute)))
    deny_getattr(opcode_at_);
}

void PickleVm::check_called(Node callable) {
  if (!is_getattr_result(callable)) return;
  const auto pair = getattr_pair(rep_->nodes[callable].b);
  if (!pair || !is_allowed_getattr(pair->owner->module, pair->owner->name, pair->attribute))
    deny_getattr(opcode_at_);
}

void PickleVm::check_grown(Node target) {
  check_not_consumed(target);
  if (is_getattr_result(target)) deny_getattr(opcode_at_);
}

void PickleVm::check_getattr_is_only_called() {
  if (getattr_ == kAbsent) return;
  // A place that a container has outgrown still holds what stood in it.
  bool held =
      rep_->root == getattr_ || std::ranges::find(rep_->children, getattr_) != rep_->children.end();
  for (const PickleNode& node : rep_->nodes) {
    held |= node.kind == PickleKind::kPersistentId && node.a == getattr_;
    held |= (node.flags & PickleNode::kHasState) != 0 && node.c == getattr_;
  }
  if (held || !getattr_was_called_) deny_getattr(getattr_at_);
}

void PickleVm::push_call(PickleKind call, Node callable, Node arguments) {
  const PickleKind k = kind(callable);
  if (k != PickleKind::kGlobal && k != PickleKind::kReduce) corrupt("a call of what is no global");
  if (kind(arguments) != PickleKind::kTuple) corrupt("a call whose arguments are no tuple");
  if (callable == getattr_) check_getattr(call, arguments);
  check_called(callable);
  consume_arguments(callable, arguments);
  push(add({.kind = call, .a = callable, .b = arguments}));
}

std::optional<PickleVm::Node> PickleVm::class_in_persistent_id(Node id) const {
  if (kind(id) != PickleKind::kTuple) return std::nullopt;
  const PickleNode& tuple = rep_->nodes[id];
  const auto items = rep_->run({tuple.wide(), tuple.a, false});
  if (items.size() != 4 || kind(items[0]) != PickleKind::kString ||
      kind(items[1]) != PickleKind::kGlobal)
    return std::nullopt;
  const PickleNode& word = rep_->nodes[items[0]];
  if (std::string_view(rep_->text).substr(word.wide(), word.length()) != "module")
    return std::nullopt;
  return items[1];
}

void PickleVm::memo_put(std::uint64_t index) {
  // No pickler numbers its memo ahead of the opcodes it has written.
  if (index > opcode_count_) corrupt(fmt::format("memo index {} out of range", index));
  const Node node = top();
  if (index >= memo_.size()) memo_.resize(index + 1, kAbsent);
  memo_count_ += memo_[index] == kAbsent;
  memo_[index] = node;
}

void PickleVm::memo_get(std::uint64_t index) {
  if (index >= memo_.size() || memo_[index] == kAbsent)
    corrupt(fmt::format("memo slot {} was never written", index));
  push(memo_[index]);
}

PickleGraph PickleVm::run(std::size_t* consumed) {
  while (!stopped_) {
    opcode_at_ = position_;
    if (position_ >= bytes_.size()) ends_early(1, "the stream ends without STOP");
    ++opcode_count_;
    step(std::to_integer<std::uint8_t>(bytes_[position_++]));
    // Python's own unpickler loses bytes there.
    if (opcode_at_ < frame_end_ && (position_ > frame_end_ || (stopped_ && position_ < frame_end_)))
      corrupt("a frame that does not end where an opcode does");
  }
  check_getattr_is_only_called();
  if (consumed) {
    *consumed = position_;
  } else if (position_ != bytes_.size()) {
    corrupt(fmt::format("{} bytes after STOP", bytes_.size() - position_));
  }
  PickleGraph graph;
  graph.rep_ = std::move(rep_);
  return graph;
}

PickleGraph read_pickle(ByteView bytes, const PickleOptions& options, std::size_t* consumed) {
  return PickleVm(bytes, options).run(consumed);
}

}  // namespace tessera
