#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/state/value.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <set>

namespace tessera {

struct Value::Node {
  /// Apart, as it is four times as large as the others together: most nodes are strings.
  using Opaque = std::unique_ptr<const OpaqueObject>;
  struct OrderedDict {  // a defaultdict too, whose attributes are its factory
    ValueDict items;
    Value attributes;
  };
  Kind kind;
  bool holds_tensors = false;
  mutable std::atomic<std::uint32_t> references = 1;
  std::variant<std::string, std::pair<double, double>, ValueList, std::vector<std::int64_t>,
               ValueDict, OrderedDict, Opaque>
      payload;
};

namespace {

bool has_attributes(Value::Kind kind) {
  return kind == Value::Kind::kOrderedDict || kind == Value::Kind::kDefaultDict;
}

bool any_tensors(const ValueList& items) {
  return std::ranges::any_of(items, &Value::holds_tensors);
}
bool any_tensors(const ValueDict& entries) {
  return std::ranges::any_of(entries, [](const auto& entry) {
    return entry.first.holds_tensors() || entry.second.holds_tensors();
  });
}
bool any_tensors(const OpaqueObject& object) {
  return object.arguments.holds_tensors() || object.keyword_arguments.holds_tensors() ||
         object.state.holds_tensors() || any_tensors(object.items) ||
         any_tensors(object.dict_items);
}

}  // namespace

Value Value::boolean(bool v) { return Value(Rep(v)); }
Value Value::integer(std::int64_t v) { return Value(Rep(v)); }
Value Value::real(double v) { return Value(Rep(v)); }
Value Value::dtype(DType v) { return Value(Rep(v)); }
Value Value::tensor(std::uint32_t index) { return Value(Rep(TensorIndex{index})); }

template <class T>
Value Value::node(Kind kind, T payload, bool holds_tensors) {
  return Value(Rep(NodePtr(
      new Node{.kind = kind, .holds_tensors = holds_tensors, .payload = std::move(payload)})));
}

Value::NodePtr::NodePtr(const NodePtr& other) noexcept : node_(other.node_) {
  if (node_ != nullptr) node_->references.fetch_add(1, std::memory_order_relaxed);
}

void Value::NodePtr::release(const Node* node) noexcept {
  if (node->references.fetch_sub(1, std::memory_order_acq_rel) == 1) delete node;
}

Value Value::big_integer(std::string decimal) { return node(Kind::kBigInt, std::move(decimal)); }
Value Value::complex(double re, double im) { return node(Kind::kComplex, std::pair(re, im)); }
Value Value::string(std::string v) { return node(Kind::kString, std::move(v)); }

Value Value::bytes(std::string v, Kind kind) {
  TESSERA_CHECK(kind == Kind::kBytes || kind == Kind::kByteArray || kind == Kind::kBytesIo);
  return node(kind, std::move(v));
}

Value Value::list(ValueList v, Kind kind) {
  TESSERA_CHECK(kind == Kind::kList || kind == Kind::kTuple || kind == Kind::kSet ||
                kind == Kind::kFrozenSet);
  const bool tensors = any_tensors(v);
  return node(kind, std::move(v), tensors);
}

Value Value::size(std::vector<std::int64_t> v) { return node(Kind::kSize, std::move(v)); }
Value Value::dict(ValueDict v) { return dict_of(Kind::kDict, std::move(v), {}); }
Value Value::ordered_dict(ValueDict v, Value attributes) {
  return dict_of(Kind::kOrderedDict, std::move(v), std::move(attributes));
}
Value Value::default_dict(ValueDict v, Value factory) {
  return dict_of(Kind::kDefaultDict, std::move(v), std::move(factory));
}
Value Value::counter(ValueDict v) { return dict_of(Kind::kCounter, std::move(v), {}); }
Value Value::dict_of(Kind kind, ValueDict v, Value attributes) {
  TESSERA_CHECK(is_dict_kind(kind));
  bool tensors = any_tensors(v);
  if (!has_attributes(kind)) return node(kind, std::move(v), tensors);
  tensors = tensors || attributes.holds_tensors();
  return node(kind, Node::OrderedDict{std::move(v), std::move(attributes)}, tensors);
}
Value Value::back_reference(std::uint32_t distance) { return Value(Rep(BackReference{distance})); }
Value Value::opaque(OpaqueObject v) {
  const bool tensors = any_tensors(v);
  return node(Kind::kOpaque, Node::Opaque(new OpaqueObject(std::move(v))), tensors);
}

Value::Kind Value::kind() const {
  switch (rep_.index()) {
    case 0:
      return Kind::kNone;
    case 1:
      return Kind::kBool;
    case 2:
      return Kind::kInt;
    case 3:
      return Kind::kFloat;
    case 4:
      return Kind::kDType;
    case 5:
      return Kind::kTensor;
    case 6:
      return Kind::kBackReference;
    default:
      return std::get<NodePtr>(rep_)->kind;
  }
}

template <class T>
const T& Value::payload() const {
  const auto* shared = std::get_if<NodePtr>(&rep_);
  TESSERA_CHECK(shared != nullptr);
  const T* payload = std::get_if<T>(&(*shared)->payload);
  TESSERA_CHECK(payload != nullptr);
  return *payload;
}

bool Value::as_bool() const {
  TESSERA_CHECK(kind() == Kind::kBool);
  return std::get<bool>(rep_);
}

std::int64_t Value::as_int() const {
  TESSERA_CHECK(kind() == Kind::kInt);
  return std::get<std::int64_t>(rep_);
}

double Value::as_real() const {
  TESSERA_CHECK(is_number());
  if (is_int()) return static_cast<double>(as_int());
  return std::get<double>(rep_);
}

std::pair<double, double> Value::as_complex() const { return payload<std::pair<double, double>>(); }
const std::string& Value::as_string() const { return payload<std::string>(); }
const ValueList& Value::as_list() const { return payload<ValueList>(); }
const std::vector<std::int64_t>& Value::as_size() const {
  return payload<std::vector<std::int64_t>>();
}

const ValueDict& Value::as_dict() const {
  if (has_attributes(kind())) return payload<Node::OrderedDict>().items;
  return payload<ValueDict>();
}

const Value& Value::attributes() const {
  static const Value kNone;
  TESSERA_CHECK(is_dict());
  return has_attributes(kind()) ? payload<Node::OrderedDict>().attributes : kNone;
}

DType Value::as_dtype() const {
  TESSERA_CHECK(kind() == Kind::kDType);
  return std::get<DType>(rep_);
}

const OpaqueObject& Value::as_opaque() const { return *payload<Node::Opaque>(); }

const Value* Value::find(std::string_view key) const {
  if (!is_dict()) return nullptr;
  for (const auto& [name, value] : as_dict())
    if (name.is_string() && name.as_string() == key) return &value;
  return nullptr;
}

const void* Value::node_id() const {
  const auto* shared = std::get_if<NodePtr>(&rep_);
  return shared == nullptr ? nullptr : shared->get();
}

bool Value::holds_tensors() const {
  const auto* shared = std::get_if<NodePtr>(&rep_);
  return shared == nullptr ? is_tensor() : (*shared)->holds_tensors;
}

/// Walks two trees side by side. A pair of nodes met before is equal so far: it was compared, or
/// the walk would have ended.
class ValueComparison {
  using Kind = Value::Kind;

 public:
  bool equal(const Value& a, const Value& b) {
    const Kind kind = a.kind();
    if (kind != b.kind()) return false;
    if (a.node_id() != nullptr) {
      if (a.node_id() == b.node_id()) return true;
      if (!met_.emplace(a.node_id(), b.node_id()).second) return true;
    }
    switch (kind) {
      case Kind::kNone:
        return true;
      case Kind::kBool:
        return a.as_bool() == b.as_bool();
      case Kind::kInt:
        return a.as_int() == b.as_int();
      case Kind::kFloat:
        return same(a.as_real(), b.as_real());
      case Kind::kDType:
        return a.as_dtype() == b.as_dtype();
      case Kind::kTensor:
        return a.tensor_index() == b.tensor_index();
      case Kind::kComplex: {
        const auto [re, im] = a.as_complex();
        return same(re, b.as_complex().first) && same(im, b.as_complex().second);
      }
      case Kind::kBigInt:
      case Kind::kString:
      case Kind::kBytes:
      case Kind::kByteArray:
      case Kind::kBytesIo:
        return a.as_string() == b.as_string();
      case Kind::kList:
      case Kind::kTuple:
      case Kind::kSet:
      case Kind::kFrozenSet:
        return equal(a.as_list(), b.as_list());
      case Kind::kSize:
        return a.as_size() == b.as_size();
      case Kind::kDict:
      case Kind::kOrderedDict:
      case Kind::kDefaultDict:
      case Kind::kCounter:
        return equal(a.attributes(), b.attributes()) && equal(a.as_dict(), b.as_dict());
      case Kind::kBackReference:
        return a.distance() == b.distance();
      case Kind::kOpaque:
        return equal(a.as_opaque(), b.as_opaque());
    }
    return false;
  }

 private:
  static bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

  bool equal(const ValueList& a, const ValueList& b) {
    if (a.size() != b.size()) return false;
    for (std::size_t i = 0; i < a.size(); ++i)
      if (!equal(a[i], b[i])) return false;
    return true;
  }
  bool equal(const ValueDict& a, const ValueDict& b) {
    if (a.size() != b.size()) return false;
    for (std::size_t i = 0; i < a.size(); ++i)
      if (!equal(a[i].first, b[i].first) || !equal(a[i].second, b[i].second)) return false;
    return true;
  }
  bool equal(const OpaqueObject& a, const OpaqueObject& b) {
    return a.how == b.how && a.module == b.module && a.name == b.name &&
           a.has_state == b.has_state && equal(a.arguments, b.arguments) &&
           equal(a.keyword_arguments, b.keyword_arguments) && equal(a.state, b.state) &&
           equal(a.items, b.items) && equal(a.dict_items, b.dict_items);
  }

  std::set<std::pair<const void*, const void*>> met_;
};

bool operator==(const Value& a, const Value& b) { return ValueComparison().equal(a, b); }

void ValueBudget::spend(std::uint64_t n) {
  if (n > left_)
    fail(Code::kCorrupt,
         fmt::format("expands to more than {} values: objects that contain each other many times",
                     limit_));
  left_ -= n;
}

std::string PathItem::text() const {
  return kind == Kind::kKey ? std::string(key) : std::to_string(index);
}

PathItem key_item(SharedText key) { return {PathItem::Kind::kKey, 0, std::move(key)}; }
PathItem int_key_item(std::int64_t key) { return {PathItem::Kind::kIntKey, key, {}}; }
PathItem index_item(std::int64_t index) { return {PathItem::Kind::kIndex, index, {}}; }

bool is_key(const PathItem& item, std::string_view key) {
  return item.kind == PathItem::Kind::kKey && item.key == key;
}

Path below(Path path, std::initializer_list<PathItem> items) {
  path.insert(path.end(), items);
  return path;
}

Path below(Path path, SharedText key) { return below(std::move(path), {key_item(std::move(key))}); }

std::string dotted(const Path& path) {
  std::string name;
  for (std::size_t i = 0; i < path.size(); ++i) {
    if (i > 0) name += '.';
    name += path[i].text();
  }
  return name;
}

const StateEntry* StateDict::find(std::string_view name) const {
  for (const StateEntry& entry : entries)
    if (entry.name == name) return &entry;
  return nullptr;
}

}  // namespace tessera
