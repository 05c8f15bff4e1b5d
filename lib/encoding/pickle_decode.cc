// Graph -> Value. Recursive, bounded by kMaxValueDepth; shared nodes decode once.
#include "lib/encoding/pickle_decode.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/encoding/pickle_globals.h>
#include <tessera/encoding/pickle_reader.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <unordered_map>
#include <unordered_set>

#include "lib/encoding/pickle_memory.h"
#include "lib/encoding/pickle_vm.h"
#include "lib/encoding/utf8.h"
#include "lib/state/python_keys.h"

namespace tessera {
namespace {

using Node = PickleGraph::Node;

constexpr int kClosed = std::numeric_limits<int>::max();

/// A value, the levels of containers it holds, and the outermost container that a back reference
/// inside means, by its place on the path from the root: kClosed if none leaves the value.
struct Decoded {
  Value value;
  int height = 0;
  int outermost = kClosed;
  bool holds_modules = false;  // or is one: it depends on where it stands
};

bool is_scalar(PickleKind kind) {
  switch (kind) {
    case PickleKind::kNone:
    case PickleKind::kBool:
    case PickleKind::kInt:
    case PickleKind::kBigInt:
    case PickleKind::kFloat:
    case PickleKind::kString:
    case PickleKind::kBytes:
      return true;
    default:
      return false;
  }
}

/// Parts of cycles are decoded once for every way that leads into them; so many values more than
/// there are nodes are made before what is left becomes a stub.
constexpr std::uint64_t kFreeCopies = std::uint64_t{1} << 16;

bool is_text(PickleKind kind) {
  return kind == PickleKind::kString || kind == PickleKind::kBytes || kind == PickleKind::kBigInt;
}

constexpr std::size_t kSharedTextBytes = 128;  // from there on held once
// What a node takes, with what the allocator adds; of a container also where it is remembered.
constexpr std::uint64_t kTextBytes = 112;
constexpr std::uint64_t kContainerBytes = 208;
constexpr char kCycle[] = "a container holds itself";
constexpr char kTooDeep[] = "nested deeper than 200 levels";
static_assert(kMaxValueDepth == 200);

/// Which nodes are parts of one cycle.
class Cycles {
 public:
  void join(std::span<const Node> nodes) {
    for (const Node node : nodes) groups_[group_of(node)] = group_of(nodes[0]);
  }
  /// Whether one of `path` is in a cycle with `node`, so that the node's contents end there.
  bool leads_to(Node node, std::span<const Node> path) {
    if (!groups_.contains(node)) return false;
    const Node group = group_of(node);
    return std::any_of(path.begin(), path.end(),
                       [&](Node n) { return groups_.contains(n) && group_of(n) == group; });
  }

 private:
  Node group_of(Node node) {
    while (true) {
      const Node above = groups_.try_emplace(node, node).first->second;
      if (above == node) return node;
      node = groups_[node] = groups_[above];
    }
  }

  std::unordered_map<Node, Node> groups_;  // a forest: its roots are the groups
};

class Decoder {
 public:
  Decoder(const PickleGraph& graph, const PickleHook& hook, const ModuleHook& modules,
          std::uint64_t granted)
      : graph_(graph),
        hook_(hook),
        modules_(modules),
        granted_bytes_(granted),
        left_bytes_(pickle_memory_bytes(stream_bytes(graph), granted)),
        copies_left_(kFreeCopies + graph.node_count() / 4) {}

  /// `levels`: containers around this value.
  Decoded decode(Node node, int levels);

 private:
  Value scalar(Node node) const;
  bool is_long_text(Node node) const;
  Value shared_text(Node node);
  Decoded compound(Node node, int levels);
  Decoded object(Node node, int levels);
  std::optional<Value> known_call(Node node, int levels, int& height);
  std::optional<Value> known_builtin(Node node, std::string_view name, int levels, int& height);
  std::optional<Value> bytes_io(Node node, int levels, int& height);
  bool is_latin1(Node encoding) const;
  std::optional<Value> enum_member(Node node, int& height) const;
  std::optional<Value> mapping(Node node, std::string_view name, int levels, int& height);
  void initial_entries(Node node, std::string_view name, ValueDict& entries, int levels,
                       int& height);
  Value opaque(Node node, int levels, int& height);
  void name_opaque(Node callable, OpaqueObject& out) const;

  void spend(std::uint64_t bytes) {
    if (bytes > left_bytes_) refuse_pickle_memory(stream_bytes(graph_), granted_bytes_);
    left_bytes_ -= bytes;
  }

  void require_object(std::size_t from, Code code, const char* problem) const;
  bool is_unknown_object(Node node) const;

  const Decoded* known(Node node) const;
  Decoded module(const ModuleEntries& entries, int levels);
  void close(Node node, Decoded& result);
  Decoded back_reference(std::size_t place);
  Decoded stub(Node node) const;
  Value child(Node node, int levels, int& height);
  ValueList list(std::span<const Node> nodes, int levels, int& height);
  Value set(std::span<const Node> items, Value::Kind kind, int levels, int& height);
  ValueDict dict(std::span<const Node> pairs, int levels, int& height);
  void check_hashable(Node key) const;
  void check_nan_once(std::span<const Node> keys, std::size_t step) const;
  void add_pair(ValueDict& out, Node key, Node value, int levels, int& height);

  bool bare(Node node) const {
    return !graph_.state(node) && graph_.items(node).empty() && graph_.dict_items(node).empty() &&
           !graph_.keyword_arguments(node);
  }

  const PickleGraph& graph_;
  const PickleHook& hook_;
  const ModuleHook& modules_;
  const std::uint64_t granted_bytes_;
  std::uint64_t left_bytes_;  // that values may take
  std::unordered_map<Node, Decoded> done_;
  std::unordered_map<Node, Decoded> done_outside_;  // with modules, in no object and no tuple
  std::unordered_map<Node, Value> texts_;
  Cycles cycles_;
  std::unordered_set<Node> met_;     // parts of cycles
  std::vector<Node> path_;           // containers being decoded, outermost first
  std::vector<int> outermost_;       // of each of them, so far
  std::vector<bool> holds_modules_;  // of each of them, so far
  std::size_t closed_ = 0;           // of them, those that are no dict or list
  int copying_ = 0;                  // nodes on the path that were decoded before
  std::uint64_t copies_left_;
};

[[noreturn]] void malformed(std::string_view what) {
  fail(Code::kCorrupt, fmt::format("pickle: malformed {}", what));
}

Decoded Decoder::decode(Node node, int levels) {
  const PickleKind kind = graph_.kind(node);
  if (copying_ > 0 && copies_left_ > 0) --copies_left_;
  spend(sizeof(Value));
  if (is_scalar(kind)) {
    if (hook_) {
      if (auto value = hook_(graph_, node)) return {std::move(*value), 0};
    }
    if (is_long_text(node)) return {shared_text(node), 0};
    if (is_text(kind)) spend(kTextBytes);
    return {scalar(node), 0};
  }
  Decoded result;
  const Decoded* found = known(node);
  if (found && !cycles_.leads_to(node, path_)) {
    result = *found;
    if (result.holds_modules && !path_.empty()) holds_modules_.back() = true;
  } else {
    if (levels >= kMaxValueDepth) {
      require_object(0, Code::kCorrupt, kTooDeep);
      return stub(node);
    }
    const auto open = std::find(path_.begin(), path_.end(), node);
    if (open != path_.end()) return back_reference(open - path_.begin());
    const bool again = found || met_.contains(node);
    const ModuleEntries* entries = modules_ ? modules_(node) : nullptr;
    const bool is_module = entries && closed_ == 0;
    const bool closes = modules_ && !is_module && !is_open_container(graph_, node);
    if (again && copies_left_ == 0) return stub(node);
    copying_ += again ? 1 : 0;
    spend(kContainerBytes);
    path_.push_back(node);
    outermost_.push_back(kClosed);
    if (modules_) holds_modules_.push_back(entries != nullptr);
    closed_ += closes ? 1 : 0;
    if (is_module) result = module(*entries, levels);
    if (result.height == 0 && hook_) {
      if (auto value = hook_(graph_, node)) result = {std::move(*value), 1};
    }
    if (result.height == 0) result = compound(node, levels);
    closed_ -= closes ? 1 : 0;
    copying_ -= again ? 1 : 0;
    close(node, result);
  }
  if (levels + result.height > kMaxValueDepth) {
    require_object(0, Code::kCorrupt, kTooDeep);
    return stub(node);
  }
  return result;
}

/// What it was decoded to before, where it means the same here.
const Decoded* Decoder::known(Node node) const {
  if (modules_ && closed_ == 0)
    if (const auto found = done_outside_.find(node); found != done_outside_.end())
      return &found->second;
  const auto found = done_.find(node);
  if (found == done_.end() || (closed_ == 0 && found->second.holds_modules)) return nullptr;
  return &found->second;
}

Decoded Decoder::module(const ModuleEntries& entries, int levels) {
  int height = 0;
  ValueDict out;
  out.reserve(entries.size());
  for (const auto& [name, node] : entries) {
    spend(2 * sizeof(Value) + kTextBytes + name.size());
    out.emplace_back(Value::string(name), child(node, levels, height));
  }
  return {Value::ordered_dict(std::move(out), {}), height + 1};
}

/// Takes it off the path. What refers to nothing around it means the same wherever it stands.
void Decoder::close(Node node, Decoded& result) {
  const int place = static_cast<int>(path_.size()) - 1;
  const int outermost = outermost_.back();
  path_.pop_back();
  outermost_.pop_back();
  if (modules_) {
    result.holds_modules = holds_modules_.back();
    holds_modules_.pop_back();
    if (result.holds_modules && !path_.empty()) holds_modules_.back() = true;
  }
  if (outermost >= place) {
    (result.holds_modules && closed_ == 0 ? done_outside_ : done_).emplace(node, result);
    return;
  }
  met_.insert(node);
  result.outermost = outermost;
  outermost_.back() = std::min(outermost_.back(), outermost);
}

/// Inside of an object of an unknown class, cycles and deep branches can be; plain containers become
/// a tree of names, which has neither. `from`: where on the path to look for such an object.
void Decoder::require_object(std::size_t from, Code code, const char* problem) const {
  const bool in_object = std::any_of(path_.begin() + static_cast<std::ptrdiff_t>(from), path_.end(),
                                     [&](Node n) { return is_unknown_object(n); });
  if (!in_object) fail(code, fmt::format("pickle: {}", problem));
}

Decoded Decoder::back_reference(std::size_t place) {
  require_object(place, Code::kUnsupported, kCycle);
  cycles_.join(std::span(path_).subspan(place));
  const int outermost = static_cast<int>(place);
  outermost_.back() = std::min(outermost_.back(), outermost);
  return {Value::back_reference(static_cast<std::uint32_t>(path_.size() - place)), 1, outermost};
}

/// What cannot be followed: it names the class and cannot be written.
Decoded Decoder::stub(Node node) const {
  OpaqueObject out;
  out.how = OpaqueObject::How::kExtension;
  out.module = "builtins";
  out.name = "object";
  if (is_unknown_object(node)) name_opaque(graph_.callable(node), out);
  return {Value::opaque(std::move(out)), 1};
}

bool Decoder::is_unknown_object(Node node) const {
  const PickleKind kind = graph_.kind(node);
  return (kind == PickleKind::kReduce || kind == PickleKind::kNewObj) &&
         !is_plain_call(graph_, node);
}

Value Decoder::scalar(Node node) const {
  switch (graph_.kind(node)) {
    case PickleKind::kBool:
      return Value::boolean(graph_.boolean(node));
    case PickleKind::kInt:
      return Value::integer(graph_.integer(node));
    case PickleKind::kBigInt:
      return Value::big_integer(std::string(graph_.text(node)));
    case PickleKind::kFloat:
      return Value::real(graph_.real(node));
    case PickleKind::kString:
      return Value::string(std::string(graph_.text(node)));
    case PickleKind::kBytes:
      return Value::bytes(std::string(graph_.text(node)));
    default:
      return Value();
  }
}

bool Decoder::is_long_text(Node node) const {
  return is_text(graph_.kind(node)) && graph_.text(node).size() >= kSharedTextBytes;
}

/// A reference takes two bytes of pickle, whatever the length of what it refers to.
Value Decoder::shared_text(Node node) {
  const auto [found, is_new] = texts_.try_emplace(node);
  if (is_new) spend(kTextBytes + graph_.text(node).size());
  if (is_new) found->second = scalar(node);
  return found->second;
}

Decoded Decoder::compound(Node node, int levels) {
  int height = 0;
  Value value;
  switch (graph_.kind(node)) {
    case PickleKind::kByteArray:
      value = Value::bytes(std::string(graph_.text(node)), Value::Kind::kByteArray);
      break;
    case PickleKind::kList:
      value = Value::list(list(graph_.items(node), levels, height));
      break;
    case PickleKind::kTuple:
      value = Value::list(list(graph_.items(node), levels, height), Value::Kind::kTuple);
      break;
    case PickleKind::kSet:
      value = set(graph_.items(node), Value::Kind::kSet, levels, height);
      break;
    case PickleKind::kFrozenSet:
      value = set(graph_.items(node), Value::Kind::kFrozenSet, levels, height);
      break;
    case PickleKind::kDict:
      value = Value::dict(dict(graph_.dict_items(node), levels, height));
      break;
    default:
      return object(node, levels);
  }
  return {std::move(value), height + 1};
}

Decoded Decoder::object(Node node, int levels) {
  int height = 0;
  const PickleKind kind = graph_.kind(node);
  if (kind == PickleKind::kGlobal) {
    const auto [module, name] = graph_.global(node);
    if (module == "torch") {
      if (const auto dtype = dtype_from_torch_name(name)) return {Value::dtype(*dtype), 1};
    }
  } else if (kind != PickleKind::kPersistentId) {
    if (auto value = known_call(node, levels, height)) return {std::move(*value), height + 1};
  }
  Value value = opaque(node, levels, height);
  return {std::move(value), height + 1};
}

Value Decoder::child(Node node, int levels, int& height) {
  Decoded decoded = decode(node, levels + 1);
  height = std::max(height, decoded.height);
  return std::move(decoded.value);
}

ValueList Decoder::list(std::span<const Node> nodes, int levels, int& height) {
  ValueList out;
  out.reserve(nodes.size());
  for (const Node node : nodes) out.push_back(child(node, levels, height));
  return out;
}

void Decoder::check_hashable(Node key) const {
  const PickleKind kind = graph_.kind(key);
  if (kind == PickleKind::kList || kind == PickleKind::kDict || kind == PickleKind::kSet ||
      kind == PickleKind::kByteArray)
    malformed("dict or set: a mutable container as key");
}

/// A NaN equals itself, no other; which of them it is gets lost here.
void Decoder::check_nan_once(std::span<const Node> keys, std::size_t step) const {
  std::unordered_set<Node> met;
  for (std::size_t i = 0; i < keys.size(); i += step)
    if (graph_.kind(keys[i]) == PickleKind::kFloat && std::isnan(graph_.real(keys[i])) &&
        !met.insert(keys[i]).second)
      malformed("dict or set: one NaN twice");
}

Value Decoder::set(std::span<const Node> items, Value::Kind kind, int levels, int& height) {
  for (const Node item : items) check_hashable(item);
  check_nan_once(items, 1);
  ValueList out = list(items, levels, height);
  merge_equal_items(out);
  return Value::list(std::move(out), kind);
}

void Decoder::add_pair(ValueDict& out, Node key, Node value, int levels, int& height) {
  check_hashable(key);
  Value k = child(key, levels, height);
  out.emplace_back(std::move(k), child(value, levels, height));
}

ValueDict Decoder::dict(std::span<const Node> pairs, int levels, int& height) {
  ValueDict out;
  out.reserve(pairs.size() / 2);
  check_nan_once(pairs, 2);
  for (std::size_t i = 0; i + 1 < pairs.size(); i += 2)
    add_pair(out, pairs[i], pairs[i + 1], levels, height);
  merge_equal_keys(out);
  return out;
}

/// OrderedDict([(k, v), ...]) of Python 2; Counter({k: n}); OrderedDict({k: v}).
void Decoder::initial_entries(Node node, std::string_view name, ValueDict& entries, int levels,
                              int& height) {
  const auto refuse = [&] { malformed("collections." + std::string(name)); };
  const auto is_pair_list = [&](Node n) {
    return graph_.kind(n) == PickleKind::kList || graph_.kind(n) == PickleKind::kTuple;
  };
  const auto arguments = graph_.items(graph_.arguments(node));
  if (arguments.empty() || (name == "defaultdict" && arguments.size() == 1)) return;
  // __new__ alone takes no entries.
  if (arguments.size() != 1 || graph_.kind(node) != PickleKind::kReduce) refuse();
  if (graph_.kind(arguments[0]) == PickleKind::kDict) {
    entries = dict(graph_.dict_items(arguments[0]), levels, height);
    return;
  }
  // Of a list, a Counter counts the items.
  if (!is_pair_list(arguments[0]) || name != "OrderedDict") refuse();
  for (const Node pair : graph_.items(arguments[0])) {
    const auto kv = graph_.items(pair);
    if (!is_pair_list(pair) || kv.size() != 2) refuse();
    add_pair(entries, kv[0], kv[1], levels, height);
  }
}

std::optional<Value> Decoder::mapping(Node node, std::string_view name, int levels, int& height) {
  if (!graph_.items(node).empty() || graph_.keyword_arguments(node)) return std::nullopt;
  ValueDict entries;
  initial_entries(node, name, entries, levels, height);
  for (ValueDict more = dict(graph_.dict_items(node), levels, height); auto& pair : more)
    entries.push_back(std::move(pair));
  merge_equal_keys(entries);
  const auto state = graph_.state(node);
  if (state && graph_.kind(*state) != PickleKind::kDict)
    malformed(fmt::format("collections.{}: a state that is no dict of attributes", name));
  if (name == "OrderedDict")
    return Value::ordered_dict(std::move(entries), state ? child(*state, levels, height) : Value());
  if (name == "Counter") return Value::counter(std::move(entries));
  const auto arguments = graph_.items(graph_.arguments(node));
  Value factory = arguments.empty() ? Value() : child(arguments[0], levels, height);
  return Value::default_dict(std::move(entries), std::move(factory));
}

/// State: (contents, position, attributes).
std::optional<Value> Decoder::bytes_io(Node node, int levels, int& height) {
  const auto state = graph_.state(node);
  const auto parts = state ? graph_.items(*state) : std::span<const Node>{};
  if (parts.empty()) return std::nullopt;
  const Value contents = child(parts[0], levels, height);
  if (contents.kind() != Value::Kind::kBytes) malformed("_io.BytesIO");
  return Value::bytes(contents.as_string(), Value::Kind::kBytesIo);
}

bool Decoder::is_latin1(Node encoding) const {
  return graph_.kind(encoding) == PickleKind::kString &&
         (graph_.text(encoding) == "latin1" || graph_.text(encoding) == "latin-1");
}

std::optional<Value> Decoder::known_builtin(Node node, std::string_view name, int levels,
                                            int& height) {
  const auto arguments = graph_.items(graph_.arguments(node));
  const auto is = [&](std::size_t i, PickleKind kind) { return graph_.kind(arguments[i]) == kind; };
  if (name == "set" || name == "frozenset") {
    const auto kind = name == "set" ? Value::Kind::kSet : Value::Kind::kFrozenSet;
    if (arguments.empty()) return Value::list({}, kind);
    const bool iterable = is(0, PickleKind::kList) || is(0, PickleKind::kTuple) ||
                          is(0, PickleKind::kSet) || is(0, PickleKind::kFrozenSet);
    const bool called = name == "frozenset" || graph_.kind(node) == PickleKind::kReduce;
    if (arguments.size() != 1 || !iterable || !called) malformed(name);
    return set(graph_.items(arguments[0]), kind, levels, height);
  }
  if (name == "complex") {
    if (arguments.size() != 2) malformed("complex");
    const Value re = child(arguments[0], levels, height);
    const Value im = child(arguments[1], levels, height);
    if (!re.is_number() || !im.is_number()) malformed("complex");
    return Value::complex(re.as_real(), im.as_real());
  }
  if (name == "bytes" && arguments.empty()) return Value::bytes("");
  if (name == "bytes") malformed("bytes");
  if (name != "bytearray") return std::nullopt;
  if (arguments.empty()) return Value::bytes("", Value::Kind::kByteArray);
  if (graph_.kind(node) != PickleKind::kReduce) malformed("bytearray");
  const Value source = child(arguments[0], levels, height);
  if (source.kind() == Value::Kind::kBytes && arguments.size() == 1)
    return Value::bytes(source.as_string(), Value::Kind::kByteArray);
  std::string raw;
  if (!source.is_string() || arguments.size() != 2 || !is_latin1(arguments[1]) ||
      !latin1_from_utf8(source.as_string(), raw))
    malformed("bytearray");
  return Value::bytes(std::move(raw), Value::Kind::kByteArray);
}

/// getattr(Class, "member") as a value is the global Class.member, as protocol 4 spells it; where
/// the member's number is known, the call Class(number), as all other Pythons pickle it.
std::optional<Value> Decoder::enum_member(Node node, int& height) const {
  const auto arguments = graph_.items(graph_.arguments(node));
  if (arguments.size() != 2 || graph_.kind(arguments[0]) != PickleKind::kGlobal ||
      graph_.kind(arguments[1]) != PickleKind::kString)
    return std::nullopt;  // denied, and only listed
  OpaqueObject out;
  name_opaque(node, out);
  const auto [module, name] = graph_.global(arguments[0]);
  if (const auto number = known_enum_number(module, name, graph_.text(arguments[1]))) {
    out.how = OpaqueObject::How::kReduce;
    out.name = name;
    out.arguments = Value::list(ValueList{Value::integer(*number)}, Value::Kind::kTuple);
    height = std::max(height, 1);
  }
  return Value::opaque(std::move(out));
}

std::optional<Value> Decoder::known_call(Node node, int levels, int& height) {
  const Node callable = graph_.callable(node);
  if (graph_.kind(callable) != PickleKind::kGlobal) return std::nullopt;
  const auto [module, name] = graph_.global(callable);
  if (module == "collections" &&
      (name == "OrderedDict" || name == "Counter" || name == "defaultdict"))
    return mapping(node, name, levels, height);
  if (module == "_io" && name == "BytesIO") return bytes_io(node, levels, height);
  if (!bare(node)) {
    if (is_plain_call(graph_, node))
      malformed(fmt::format("{}.{}: items or a state set on what has none", module, name));
    return std::nullopt;
  }
  if (module == "builtins" && name == "getattr") return enum_member(node, height);
  if (module == "builtins") return known_builtin(node, name, levels, height);
  const auto arguments = graph_.items(graph_.arguments(node));
  if (module == "torch" && name == "Size") {
    std::vector<std::int64_t> sizes;
    if (arguments.size() > 1 ||
        (!arguments.empty() && graph_.kind(arguments[0]) != PickleKind::kTuple &&
         graph_.kind(arguments[0]) != PickleKind::kList))
      malformed("torch.Size");
    for (const Node item : arguments.empty() ? arguments : graph_.items(arguments[0])) {
      if (graph_.kind(item) != PickleKind::kInt) malformed("torch.Size");
      sizes.push_back(graph_.integer(item));
    }
    return Value::size(std::move(sizes));
  }
  if (module == "_codecs" && name == "encode") {
    std::string raw;
    if (arguments.size() != 2 || graph_.kind(arguments[0]) != PickleKind::kString ||
        !is_latin1(arguments[1]) || graph_.kind(node) != PickleKind::kReduce ||
        !latin1_from_utf8(graph_.text(arguments[0]), raw))
      malformed("_codecs.encode: only latin1 text makes bytes");
    return Value::bytes(std::move(raw));
  }
  return std::nullopt;
}

/// getattr(Class, "Inner") as a callable is the class Class.Inner.
void Decoder::name_opaque(Node callable, OpaqueObject& out) const {
  if (graph_.kind(callable) == PickleKind::kGlobal) {
    std::tie(out.module, out.name) = graph_.global(callable);
    return;
  }
  const auto arguments = graph_.items(graph_.arguments(callable));
  if (!graph_.is_call(callable, "builtins", "getattr") || arguments.size() != 2 ||
      graph_.kind(arguments[0]) != PickleKind::kGlobal ||
      graph_.kind(arguments[1]) != PickleKind::kString)
    fail(Code::kUnsupported, "pickle: a call of another call's result");
  std::tie(out.module, out.name) = graph_.global(arguments[0]);
  out.name += fmt::format(".{}", graph_.text(arguments[1]));
}

Value Decoder::opaque(Node node, int levels, int& height) {
  OpaqueObject out;
  const PickleKind kind = graph_.kind(node);
  if (kind == PickleKind::kGlobal) {
    out.how = OpaqueObject::How::kGlobal;
    name_opaque(node, out);
    return Value::opaque(std::move(out));
  }
  out.arguments = child(graph_.arguments(node), levels, height);
  if (kind == PickleKind::kPersistentId) {
    out.how = OpaqueObject::How::kPersistentId;
    return Value::opaque(std::move(out));
  }
  out.how = kind == PickleKind::kReduce ? OpaqueObject::How::kReduce : OpaqueObject::How::kNewObj;
  name_opaque(graph_.callable(node), out);
  if (const auto keywords = graph_.keyword_arguments(node)) {
    out.how = OpaqueObject::How::kNewObjEx;
    out.keyword_arguments = child(*keywords, levels, height);
  }
  if (const auto state = graph_.state(node)) {
    out.has_state = true;
    out.state = child(*state, levels, height);
  }
  out.items = list(graph_.items(node), levels, height);
  out.dict_items = dict(graph_.dict_items(node), levels, height);
  return Value::opaque(std::move(out));
}

}  // namespace

bool is_plain_call(const PickleGraph& graph, PickleGraph::Node node) {
  const auto is = [&](std::string_view module, std::initializer_list<std::string_view> names) {
    return std::any_of(names.begin(), names.end(),
                       [&](std::string_view name) { return graph.is_call(node, module, name); });
  };
  return is("collections", {"OrderedDict", "Counter", "defaultdict"}) || is("torch", {"Size"}) ||
         is("_codecs", {"encode"}) || is("_io", {"BytesIO"}) ||
         is("builtins", {"set", "frozenset", "bytearray", "bytes", "complex"});
}

bool is_open_container(const PickleGraph& graph, PickleGraph::Node node) {
  const PickleKind kind = graph.kind(node);
  return kind == PickleKind::kDict || kind == PickleKind::kList ||
         graph.is_call(node, "collections", "OrderedDict") ||
         graph.is_call(node, "collections", "defaultdict");
}

Value decode_pickle(const PickleGraph& graph, PickleGraph::Node node, const PickleHook& hook,
                    const ModuleHook& modules, std::uint64_t limit_bytes) {
  return Decoder(graph, hook, modules, limit_bytes).decode(node, 0).value;
}

Value decode_pickle(const PickleGraph& graph, PickleGraph::Node node, const PickleHook& hook,
                    std::uint64_t limit_bytes) {
  return decode_pickle(graph, node, hook, {}, limit_bytes);
}

}  // namespace tessera
