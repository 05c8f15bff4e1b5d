#pragma once
// Value: everything in a state dict that is not a tensor's bytes. An immutable tree (a DAG where
// the source shares nodes) of Python-like values: what pickle, JSON and HDF5 attributes decode to.
//
// - Copies are cheap (shared nodes). Code that builds a Value from untrusted input limits its depth
//   (kMaxValueDepth), so destruction and traversal may recurse. Breadth is not limited: traversals
//   that expand shared nodes take a ValueBudget, so that 2^60 paths through 60 nodes end in
//   kCorrupt.
// - A tensor inside is a reference: an index into Manifest::tensors.
// - Dict order is kept; keys are Values (integer 1 differs from "1").
// - Opaque: an object of a class we do not know: its global's name, arguments, state and items.
//   It can be listed and copied verbatim into pickle formats, never called.
// - A cycle in Python's objects ends in a back reference, which counts containers outwards: 1 is
//   the container that holds the reference. So a value's content does not depend on its place,
//   except for references that point outside of it.
#include <tessera/base/bytes.h>
#include <tessera/base/error.h>
#include <tessera/base/shared_text.h>
#include <tessera/base/small_vector.h>
#include <tessera/tensor/dtype.h>

#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace tessera {

inline constexpr int kMaxValueDepth = 200;

class Value;
using ValueList = std::vector<Value>;
using ValueDict = std::vector<std::pair<Value, Value>>;

/// An object of a class outside the table.
struct OpaqueObject;

class Value {
 public:
  enum class Kind : std::uint8_t {
    kNone,
    kBool,
    kInt,
    kBigInt,
    kFloat,
    kComplex,
    kString,
    kBytes,
    kByteArray,
    kBytesIo,  // a DCP byte item that is no archive: raw bytes of an io.BytesIO
    kList,
    kTuple,
    kSet,
    kFrozenSet,
    kSize,
    kDict,
    kOrderedDict,
    kDefaultDict,
    kCounter,
    kDType,
    kTensor,
    kOpaque,
    kBackReference,
  };

  Value() = default;  // None
  static Value boolean(bool v);
  static Value integer(std::int64_t v);
  static Value big_integer(std::string decimal);  // beyond int64; "-123..."
  static Value real(double v);
  static Value complex(double re, double im);
  static Value string(std::string v);  // UTF-8; lone surrogates as Python's surrogatepass
  static Value bytes(std::string v, Kind kind = Kind::kBytes);  // kBytes, kByteArray, kBytesIo
  static Value list(ValueList v, Kind kind = Kind::kList);      // kList, kTuple, kSet, kFrozenSet
  static Value size(std::vector<std::int64_t> v);
  static Value dict(ValueDict v);
  /// `attributes`: instance attributes of an OrderedDict (module.state_dict()'s `_metadata`); None
  /// if none.
  static Value ordered_dict(ValueDict v, Value attributes);
  /// `factory`: a collections.defaultdict's default_factory; None if it has none.
  static Value default_dict(ValueDict v, Value factory);
  static Value counter(ValueDict v);
  /// A dict of any kind. `attributes`: as attributes() gives them.
  static Value dict_of(Kind kind, ValueDict v, Value attributes);
  static Value dtype(DType v);
  static Value tensor(std::uint32_t index);
  static Value opaque(OpaqueObject v);
  /// The container `distance` levels out: 1 is the one that holds the reference itself.
  static Value back_reference(std::uint32_t distance);

  Kind kind() const;
  bool is_none() const { return kind() == Kind::kNone; }
  bool is_dict() const { return is_dict_kind(kind()); }
  static bool is_dict_kind(Kind kind) { return kind >= Kind::kDict && kind <= Kind::kCounter; }
  bool is_back_reference() const { return std::holds_alternative<BackReference>(rep_); }
  bool is_string() const { return kind() == Kind::kString; }
  bool is_int() const { return kind() == Kind::kInt; }
  bool is_tensor() const { return std::holds_alternative<TensorIndex>(rep_); }
  bool is_number() const { return kind() == Kind::kInt || kind() == Kind::kFloat; }

  // Accessors: the kind must match (TESSERA_CHECK).
  bool as_bool() const;
  std::int64_t as_int() const;
  double as_real() const;  // kInt or kFloat
  std::pair<double, double> as_complex() const;
  const std::string& as_string() const;  // kString, kBytes*, kBigInt
  const ValueList& as_list() const;      // kList, kTuple, kSet, kFrozenSet
  const std::vector<std::int64_t>& as_size() const;
  const ValueDict& as_dict() const;  // every kind of dict
  /// kOrderedDict: its instance attributes; kDefaultDict: its factory; None of other dicts.
  const Value& attributes() const;
  DType as_dtype() const;
  std::uint32_t tensor_index() const {
    TESSERA_CHECK(is_tensor());
    return std::get<TensorIndex>(rep_).index;
  }
  const OpaqueObject& as_opaque() const;
  std::uint32_t distance() const {  // kBackReference
    TESSERA_CHECK(is_back_reference());
    return std::get<BackReference>(rep_).distance;
  }

  /// Entry of a dict by string key, or nullptr (also when this is no dict). Linear.
  const Value* find(std::string_view key) const;

  /// Identity of the shared node (nullptr for scalars held inline): detects sharing.
  const void* node_id() const;

  /// Whether this is a tensor, or one stands anywhere inside. Known since the value was made.
  bool holds_tensors() const;

  /// Deep equality; NaN equals NaN, 1 differs from 1.0 and from True, list from tuple; the order of
  /// a dict counts. Shared nodes are compared once.
  friend bool operator==(const Value& a, const Value& b);

 private:
  struct Node;
  /// A count inside the node: half as large as a std::shared_ptr, of which a pickle may have
  /// millions.
  class NodePtr {
   public:
    explicit NodePtr(const Node* node) : node_(node) {}  // the first that refers to it
    NodePtr(const NodePtr& other) noexcept;
    NodePtr(NodePtr&& other) noexcept : node_(std::exchange(other.node_, nullptr)) {}
    NodePtr& operator=(NodePtr other) noexcept {
      std::swap(node_, other.node_);
      return *this;
    }
    ~NodePtr() {
      if (node_ != nullptr) release(node_);
    }
    const Node* get() const { return node_; }
    const Node* operator->() const { return node_; }

   private:
    static void release(const Node* node) noexcept;
    const Node* node_;
  };
  struct TensorIndex {
    std::uint32_t index;
  };
  struct BackReference {
    std::uint32_t distance;
  };
  using Rep = std::variant<std::monostate, bool, std::int64_t, double, DType, TensorIndex,
                           BackReference, NodePtr>;

  explicit Value(Rep rep) : rep_(std::move(rep)) {}
  template <class T>
  static Value node(Kind kind, T payload, bool holds_tensors = false);
  template <class T>
  const T& payload() const;

  Rep rep_;
};

struct OpaqueObject {
  /// How pickle made it; decides how it is written back. kPersistentId: a bare storage, whose
  /// arguments are the tensor of all its elements and its dtype (None: an UntypedStorage).
  /// kExtension: what could not be followed (too deep, or cycles within cycles): class alone.
  enum class How : std::uint8_t { kGlobal, kReduce, kNewObj, kNewObjEx, kPersistentId, kExtension };
  How how = How::kGlobal;
  std::string module;       // "torch.optim.lr_scheduler"
  std::string name;         // "StepLR"
  Value arguments;          // tuple; None for kGlobal
  Value keyword_arguments;  // kNewObjEx
  Value state;              // BUILD's argument; None if absent
  bool has_state = false;
  ValueList items;       // APPEND(S)
  ValueDict dict_items;  // SETITEM(S)
  std::string global() const { return module + "." + name; }
};

/// Counts nodes a traversal expands; throws kCorrupt past the limit ("expands to more than N
/// values").
class ValueBudget {
 public:
  explicit ValueBudget(std::uint64_t limit) : limit_(limit), left_(limit) {}
  void spend(std::uint64_t n = 1);

 private:
  std::uint64_t limit_;
  std::uint64_t left_;
};

/// One step of a path: a list index, or a dict key (string or integer).
struct PathItem {
  enum class Kind : std::uint8_t { kIndex, kKey, kIntKey };
  Kind kind = Kind::kKey;
  std::int64_t index = 0;  // kIndex, kIntKey
  SharedText key;          // kKey
  bool operator==(const PathItem&) const = default;
  std::string text() const;
};
using Path = SmallVector<PathItem, 1>;

/// The item that enters a dict at a string, a dict at an integer, or a list at an index.
PathItem key_item(SharedText key);
PathItem int_key_item(std::int64_t key);
PathItem index_item(std::int64_t index);
/// Whether `item` is the string key `key` (the integer 1 is not the key "1").
bool is_key(const PathItem& item, std::string_view key);
/// `path` with `items`, or a string key, appended: a place inside what `path` names.
Path below(Path path, std::initializer_list<PathItem> items);
Path below(Path path, SharedText key);

/// Path items joined by dots: the name of a leaf.
std::string dotted(const Path& path);

/// One leaf of a state dict: a tensor reference, or a value that is stored as a whole.
struct StateEntry {
  SharedText name;  // dotted(path), or the key the format itself stores
  Path path;        // empty only for a bare top object
  Value value;      // kTensor: a tensor leaf
  /// The rank that this entry belongs to. Set by readers that found different values under one name
  /// on different ranks; each rank's is then below that name. Meaningless at another world size.
  std::optional<std::int64_t> rank = std::nullopt;
};

/// What paths alone cannot restore of a container. Containers without a note are plain dicts or
///   lists.
///   kDict         an empty dict; or, with `attributes`, a dict whose keys are neither strings nor
///                 integers: a dict from the text of such a key in the paths to the key itself
///   kOrderedDict  an OrderedDict, with its instance attributes or None
///   kDefaultDict  a defaultdict, with its factory or None
///   kCounter      a Counter
struct ContainerNote {
  Path path;
  Value::Kind kind = Value::Kind::kDict;
  Value attributes;
  /// Entries that stand before it in the source: where an empty dict goes back. By default all.
  std::size_t entries_before = static_cast<std::size_t>(-1);
};

/// A flattened state dict, in the source's order. Names are unique.
struct StateDict {
  std::vector<StateEntry> entries;
  std::vector<ContainerNote> containers;

  const StateEntry* find(std::string_view name) const;  // linear
};

/// The 2.4+ rule of DCP: every dict is entered, a list only when it holds (at any depth of lists) a
/// tensor or a dict, a tuple never; an empty dict leaves only a ContainerNote. Throws kUnsupported
/// when two leaves get one name. Source: torch/distributed/checkpoint/_traverse.py (2.4 and newer).
StateDict flatten(const Value& root, ValueBudget& budget);
/// The rule of 2.0 to 2.3: a dict is entered only if it holds a tensor or a non-terminal container.
StateDict flatten_before_2_4(const Value& root, ValueBudget& budget);
/// The inverse, by paths and notes: a list where the next item is an index, a dict elsewhere; gaps
/// in a list are None.
Value unflatten(const StateDict& state);

}  // namespace tessera
