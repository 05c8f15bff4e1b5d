// The opcode table: protocols 0 to 5 without out-of-band buffers and the extension registry.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>

#include "lib/encoding/pickle_text.h"
#include "lib/encoding/pickle_vm.h"

namespace tessera {

template <class T>
T PickleVm::take_number() {
  const std::string_view raw = take(sizeof(T), "a number");
  return load_le<T>(reinterpret_cast<const std::byte*>(raw.data()));
}

struct PickleOpcodes {
  using Vm = PickleVm;
  using Node = PickleVm::Node;
  using Kind = PickleKind;
  using Handler = void (*)(Vm&);

  // Stream.
  static void proto(Vm& vm) {
    if (vm.opcode_at_ != 0 || vm.take_number<std::uint8_t>() > 5)
      vm.corrupt("PROTO that is misplaced or newer than 5");
  }
  static void frame(Vm& vm) {
    const auto length = vm.take_number<std::uint64_t>();
    const std::uint64_t left = vm.bytes_.size() - vm.position_;
    if (length > left) vm.ends_early(length - left, "a frame past the end of the stream");
    if (vm.opcode_at_ < vm.frame_end_) vm.corrupt("a frame inside of a frame");
    vm.frame_end_ = vm.position_ + length;
  }
  static void stop(Vm& vm) {
    vm.rep_->root = vm.pop();
    if (!vm.stack_.empty() || !vm.marks_.empty()) vm.corrupt("STOP with values left on the stack");
    vm.stopped_ = true;
  }
  static void mark(Vm& vm) { vm.marks_.push_back(vm.stack_.size()); }
  static void pop(Vm& vm) {
    if (!vm.marks_.empty() && vm.stack_.size() == vm.marks_.back()) {
      vm.marks_.pop_back();
    } else {
      vm.pop();
    }
  }
  static void pop_mark(Vm& vm) {
    vm.since_mark();
    vm.drop_to_mark();
  }
  static void dup(Vm& vm) { vm.push(vm.top()); }

  // Scalars.
  static void none(Vm& vm) { vm.push(vm.none_); }
  static void new_true(Vm& vm) { vm.push(vm.true_); }
  static void new_false(Vm& vm) { vm.push(vm.false_); }
  static void bin_int(Vm& vm) { vm.push_integer(vm.take_number<std::int32_t>()); }
  static void bin_int1(Vm& vm) { vm.push_integer(vm.take_number<std::uint8_t>()); }
  static void bin_int2(Vm& vm) { vm.push_integer(vm.take_number<std::uint16_t>()); }
  static void long1(Vm& vm) { vm.push_long(vm.take(vm.take_number<std::uint8_t>(), "an integer")); }
  static void long4(Vm& vm) {
    const auto length = vm.take_number<std::int32_t>();
    if (length < 0) vm.corrupt("an integer of negative length");
    vm.push_long(vm.take(static_cast<std::uint64_t>(length), "an integer"));
  }
  static void bin_float(Vm& vm) {
    vm.push_number(Kind::kFloat, __builtin_bswap64(vm.take_number<std::uint64_t>()));
  }
  static void text_int(Vm& vm) {
    const std::string_view line = vm.take_line();
    if (line == "00") return vm.push(vm.false_);
    if (line == "01") return vm.push(vm.true_);
    vm.push_decimal(line);
  }
  static void text_long(Vm& vm) {
    const std::string_view line = vm.take_line();
    vm.push_decimal(line.ends_with('L') ? line.substr(0, line.size() - 1) : line);
  }
  static void text_float(Vm& vm) {
    const std::string_view line = vm.take_line();
    double value = 0;
    const char* end = line.data() + line.size();
    const auto [last, error] = std::from_chars(line.data(), end, value);
    if (error != std::errc() || last != end)
      vm.corrupt(fmt::format("\"{}\" is no float", printable(line)));
    vm.push_number(Kind::kFloat, std::bit_cast<std::uint64_t>(value));
  }

  // Text and bytes. Python 2's str is text where it is UTF-8, bytes elsewhere.
  template <class Length, void (Vm::*push)(std::string_view)>
  static void counted(Vm& vm) {
    const Length length = vm.take_number<Length>();
    if constexpr (std::is_signed_v<Length>) {
      if (length < 0) vm.corrupt("a string of negative length");
    }
    (vm.*push)(vm.take(static_cast<std::uint64_t>(length), "a string"));
  }
  template <class Length, Kind kind>
  static void counted_bytes(Vm& vm) {
    const Length length = vm.take_number<Length>();
    vm.push_text(kind, vm.take(length, "bytes"));
  }
  static void text_string(Vm& vm) {
    const std::optional<std::string> value = parse_python_string(vm.take_line());
    if (!value) vm.corrupt("a malformed quoted string");
    vm.push_python2_string(*value);
  }
  static void text_unicode(Vm& vm) {
    const std::optional<std::string> value = parse_raw_unicode_escape(vm.take_line());
    if (!value) vm.corrupt("a malformed unicode escape");
    vm.push_string(*value);
  }

  // Containers.
  template <Kind kind>
  static void empty(Vm& vm) {
    vm.push_sequence(kind, {});
  }
  static void empty_tuple(Vm& vm) { vm.push(vm.empty_tuple_); }
  template <std::size_t n>
  static void tuple_n(Vm& vm) {
    std::array<Node, n> items;
    for (std::size_t i = n; i-- > 0;) items[i] = vm.pop();
    vm.push_sequence(Kind::kTuple, items);
  }
  template <Kind kind>
  static void from_mark(Vm& vm) {
    const std::span<const Node> items = vm.since_mark();
    if (kind == Kind::kDict && items.size() % 2) vm.corrupt("a key without its value");
    const std::vector<Node> copy(items.begin(), items.end());
    vm.drop_to_mark();
    vm.push_sequence(kind, copy);
  }
  static void append(Vm& vm) {
    const Node item = vm.pop();
    vm.append_to(vm.top(), std::span(&item, 1));
  }
  static void append_all(Vm& vm) { add_all(vm, &Vm::append_to); }
  static void set_item(Vm& vm) {
    const Node value = vm.pop();
    const Node key = vm.pop();
    const std::array pair{key, value};
    vm.set_in(vm.top(), pair);
  }
  static void set_items(Vm& vm) { add_all(vm, &Vm::set_in); }
  static void add_all(Vm& vm, void (Vm::*add)(Node, std::span<const Node>)) {
    const std::span<const Node> items = vm.since_mark();
    const std::size_t begin = vm.marks_.back();
    const std::size_t floor = vm.marks_.size() > 1 ? vm.marks_[vm.marks_.size() - 2] : 0;
    if (begin <= floor) vm.corrupt("nothing below the mark to add to");
    (vm.*add)(vm.stack_[begin - 1], items);
    vm.drop_to_mark();
  }

  // Objects.
  static void global(Vm& vm) {
    const std::string_view module = vm.take_line();
    vm.push_global(module, vm.take_line());
  }
  static void stack_global(Vm& vm) {
    const Node name = vm.pop();
    const Node module = vm.pop();
    if (vm.kind(name) != Kind::kString || vm.kind(module) != Kind::kString)
      vm.corrupt("STACK_GLOBAL without two strings");
    const auto text = [&](Node node) {
      const PickleNode& n = vm.rep_->nodes[node];
      return std::string_view(vm.rep_->text).substr(n.wide(), n.length());
    };
    vm.push_global(text(module), text(name));
  }
  template <Kind kind>
  static void call(Vm& vm) {
    const Node arguments = vm.pop();
    const Node callable = vm.pop();
    vm.push_call(kind, callable, arguments);
  }
  static void new_obj_ex(Vm& vm) {
    const Node keywords = vm.pop();
    if (vm.kind(keywords) != Kind::kDict) vm.corrupt("NEWOBJ_EX whose keywords are no dict");
    vm.consume(keywords, Vm::Consumer::kKnownState);
    call<Kind::kNewObj>(vm);
    PickleExtra& extra = vm.extra(vm.top());
    extra.keyword_arguments = keywords;
    extra.has_keyword_arguments = true;
  }
  static void inst(Vm& vm) {
    global(vm);
    const Node callable = vm.pop();
    from_mark<Kind::kTuple>(vm);
    const Node arguments = vm.pop();
    vm.push_call(Kind::kReduce, callable, arguments);
  }
  static void obj(Vm& vm) {
    const std::span<const Node> items = vm.since_mark();
    if (items.empty()) vm.corrupt("OBJ without a class");
    const Node callable = items.front();
    const std::vector<Node> rest(items.begin() + 1, items.end());
    vm.drop_to_mark();
    vm.push_sequence(Kind::kTuple, rest);
    const Node arguments = vm.pop();
    vm.push_call(Kind::kReduce, callable, arguments);
  }
  static void build(Vm& vm) {
    const Node state = vm.pop();
    const Node target = vm.top();
    if (vm.kind(target) != Kind::kReduce && vm.kind(target) != Kind::kNewObj)
      vm.corrupt("BUILD on something that is not an object");
    vm.check_grown(target);
    PickleNode& node = vm.rep_->nodes[target];
    vm.consume(state, vm.is_known_callable(node.a) ? Vm::Consumer::kKnownState
                                                   : Vm::Consumer::kOpaqueCall);
    if (node.flags & PickleNode::kHasState) vm.corrupt("a second BUILD on one object");
    node.flags |= PickleNode::kHasState;
    node.c = state;
  }
  static void bin_persid(Vm& vm) {
    const Node id = vm.pop();
    vm.consume(id, Vm::Consumer::kKnownCall);
    const auto legacy_class = vm.class_in_persistent_id(id);
    vm.push(legacy_class ? *legacy_class : vm.add({.kind = Kind::kPersistentId, .a = id}));
  }
  static void persid(Vm& vm) {
    vm.push_python2_string(vm.take_line());
    bin_persid(vm);
  }

  // Memo.
  template <class Index>
  static void put(Vm& vm) {
    vm.memo_put(vm.take_number<Index>());
  }
  template <class Index>
  static void get(Vm& vm) {
    vm.memo_get(vm.take_number<Index>());
  }
  static void memoize(Vm& vm) { vm.memo_put(vm.memo_count_); }
  static std::uint64_t text_index(Vm& vm) {
    const std::string_view line = vm.take_line();
    std::uint64_t index = 0;
    const auto [last, error] = std::from_chars(line.data(), line.data() + line.size(), index);
    if (error != std::errc() || last != line.data() + line.size())
      vm.corrupt("a memo index that is no number");
    return index;
  }
  static void text_put(Vm& vm) { vm.memo_put(text_index(vm)); }
  static void text_get(Vm& vm) { vm.memo_get(text_index(vm)); }

  static constexpr std::array<Handler, 256> table();
};

constexpr std::array<PickleOpcodes::Handler, 256> PickleOpcodes::table() {
  std::array<Handler, 256> t{};
  t['('] = mark, t['.'] = stop, t['0'] = pop, t['1'] = pop_mark, t['2'] = dup;
  t['N'] = none, t['I'] = text_int, t['L'] = text_long, t['F'] = text_float;
  t['J'] = bin_int, t['K'] = bin_int1, t['M'] = bin_int2, t['G'] = bin_float;
  t['S'] = text_string, t['V'] = text_unicode;
  t['T'] = counted<std::int32_t, &Vm::push_python2_string>;
  t['U'] = counted<std::uint8_t, &Vm::push_python2_string>;
  t['X'] = counted<std::uint32_t, &Vm::push_string>;
  t['B'] = counted_bytes<std::uint32_t, Kind::kBytes>;
  t['C'] = counted_bytes<std::uint8_t, Kind::kBytes>;
  t['c'] = global, t['R'] = call<Kind::kReduce>, t['b'] = build, t['i'] = inst, t['o'] = obj;
  t['P'] = persid, t['Q'] = bin_persid;
  t[')'] = empty_tuple, t[']'] = empty<Kind::kList>, t['}'] = empty<Kind::kDict>;
  t['t'] = from_mark<Kind::kTuple>, t['l'] = from_mark<Kind::kList>;
  t['d'] = from_mark<Kind::kDict>;
  t['a'] = append, t['e'] = append_all, t['s'] = set_item, t['u'] = set_items;
  t['p'] = text_put, t['q'] = put<std::uint8_t>, t['r'] = put<std::uint32_t>;
  t['g'] = text_get, t['h'] = get<std::uint8_t>, t['j'] = get<std::uint32_t>;
  // Protocol 2.
  t[0x80] = proto, t[0x81] = call<Kind::kNewObj>;
  t[0x85] = tuple_n<1>, t[0x86] = tuple_n<2>, t[0x87] = tuple_n<3>;
  t[0x88] = new_true, t[0x89] = new_false, t[0x8a] = long1, t[0x8b] = long4;
  // Protocols 4 and 5.
  t[0x8c] = counted<std::uint8_t, &Vm::push_string>;
  t[0x8d] = counted<std::uint64_t, &Vm::push_string>;
  t[0x8e] = counted_bytes<std::uint64_t, Kind::kBytes>;
  t[0x8f] = empty<Kind::kSet>, t[0x90] = append_all, t[0x91] = from_mark<Kind::kFrozenSet>;
  t[0x92] = new_obj_ex, t[0x93] = stack_global, t[0x94] = memoize, t[0x95] = frame;
  t[0x96] = counted_bytes<std::uint64_t, Kind::kByteArray>;
  return t;
}

void PickleVm::step(std::uint8_t opcode) {
  static constexpr auto kTable = PickleOpcodes::table();
  const PickleOpcodes::Handler handler = kTable[opcode];
  if (!handler) corrupt(fmt::format("opcode 0x{:02x} is not allowed", opcode));
  handler(*this);
}

}  // namespace tessera
