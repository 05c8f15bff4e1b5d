// Value -> pickle opcodes.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/encoding/pickle_globals.h>
#include <tessera/encoding/pickle_writer.h>

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "lib/encoding/utf8.h"
#include "lib/state/python_keys.h"

namespace tessera {
namespace {

constexpr std::size_t kBatch = 1000;  // items per APPENDS or SETITEMS, as Python writes them

using WriteTensor = std::function<void(PickleEmitter&, std::uint32_t)>;
using WriteStorage = std::function<void(PickleEmitter&, std::uint32_t, std::optional<DType>)>;

class ValueWriter {
 public:
  ValueWriter(PickleEmitter& emitter, const WriteTensor& tensor, const WriteStorage& storage)
      : emitter_(emitter), tensor_(tensor), storage_(storage) {}

  /// Finds the nodes that occur more than once, and those that hold references to themselves.
  void scan(const Value& value);
  void write(const Value& value);

 private:
  /// A container or object being written: what a back reference may mean.
  struct Open {
    const void* id;
    std::optional<std::uint32_t> memo;
  };

  void scan_opaque(const OpaqueObject& object);
  Open& meant(std::uint32_t distance);
  void made();
  void write_back_reference(std::uint32_t distance);
  void write_bare_storage(const OpaqueObject& object);
  void write_node(const Value& value);
  void write_text(const Value& value);
  void write_items(const ValueList& items);
  void write_pairs(const ValueDict& pairs);
  void write_tuple(const ValueList& items);
  void write_list(const Value& value);
  void write_size(const std::vector<std::int64_t>& sizes);
  void write_dict(const Value& value);
  void write_dtype(DType dtype);
  void write_opaque(const OpaqueObject& object);
  void write_class(const OpaqueObject& object);

  PickleEmitter& emitter_;
  const WriteTensor& tensor_;
  const WriteStorage& storage_;
  std::unordered_map<const void*, int> uses_;
  std::unordered_map<const void*, std::uint32_t> memo_;
  std::unordered_set<const void*> cyclic_;
  std::vector<Open> open_;
};

/// What counts as a level for back references.
bool is_container(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::kList:
    case Value::Kind::kTuple:
    case Value::Kind::kSet:
    case Value::Kind::kFrozenSet:
    case Value::Kind::kOpaque:
      return true;
    default:
      return value.is_dict();
  }
}

bool is_memoised_kind(Value::Kind kind) {
  switch (kind) {
    case Value::Kind::kList:
    case Value::Kind::kTuple:
    case Value::Kind::kSet:
    case Value::Kind::kFrozenSet:
    case Value::Kind::kDict:
    case Value::Kind::kOrderedDict:
    case Value::Kind::kDefaultDict:
    case Value::Kind::kCounter:
    case Value::Kind::kOpaque:
    case Value::Kind::kByteArray:
    case Value::Kind::kBytesIo:
      return true;
    default:
      return false;
  }
}

void ValueWriter::scan(const Value& value) {
  if (value.is_back_reference()) {
    cyclic_.insert(meant(value.distance()).id);
    return;
  }
  if (!is_memoised_kind(value.kind())) return;
  if (value.node_id() && ++uses_[value.node_id()] > 1) return;
  if (is_container(value)) open_.push_back({value.node_id(), {}});
  switch (value.kind()) {
    case Value::Kind::kList:
    case Value::Kind::kTuple:
    case Value::Kind::kSet:
    case Value::Kind::kFrozenSet:
      for (const Value& item : value.as_list()) scan(item);
      break;
    case Value::Kind::kDict:
    case Value::Kind::kOrderedDict:
    case Value::Kind::kDefaultDict:
    case Value::Kind::kCounter:
      scan(value.attributes());
      require_different_keys(value.as_dict());
      for (const auto& [key, item] : value.as_dict()) {
        scan(key);
        scan(item);
      }
      break;
    case Value::Kind::kOpaque:
      scan_opaque(value.as_opaque());
      break;
    default:
      break;
  }
  if (is_container(value)) open_.pop_back();
}

ValueWriter::Open& ValueWriter::meant(std::uint32_t distance) {
  if (distance == 0 || distance > open_.size())
    fail(Code::kUnsupported,
         "pickle: an object refers to a container around it that is not written with it");
  return open_[open_.size() - distance];
}

void ValueWriter::scan_opaque(const OpaqueObject& object) {
  scan(object.arguments);
  scan(object.keyword_arguments);
  scan(object.state);
  for (const Value& item : object.items) scan(item);
  for (const auto& [key, item] : object.dict_items) {
    scan(key);
    scan(item);
  }
}

void ValueWriter::write(const Value& value) {
  if (value.is_back_reference()) return write_back_reference(value.distance());
  const void* id = is_memoised_kind(value.kind()) ? value.node_id() : nullptr;
  const auto use = id ? uses_.find(id) : uses_.end();
  const bool shared = use != uses_.end() && use->second > 1;
  if (shared) {
    if (const auto known = memo_.find(id); known != memo_.end()) return emitter_.get(known->second);
  }
  const bool container = is_container(value);
  if (container) open_.push_back({id, {}});
  write_node(value);
  if (container) open_.pop_back();
  if (shared && !memo_.contains(id)) memo_.emplace(id, emitter_.put());
}

/// The container on top of the stack is there, and its contents follow: from here on they can refer
/// to it.
void ValueWriter::made() {
  Open& container = open_.back();
  if (!cyclic_.contains(container.id)) return;
  container.memo = emitter_.put();
  memo_.emplace(container.id, *container.memo);
}

void ValueWriter::write_back_reference(std::uint32_t distance) {
  const Open& container = meant(distance);
  if (!container.memo)
    fail(Code::kUnsupported,
         "pickle: a tuple or set, or the arguments of an object, that hold themselves");
  emitter_.get(*container.memo);
}

void ValueWriter::write_node(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::kNone:
      return emitter_.none();
    case Value::Kind::kBool:
      return emitter_.boolean(value.as_bool());
    case Value::Kind::kInt:
      return emitter_.integer(value.as_int());
    case Value::Kind::kFloat:
      return emitter_.real(value.as_real());
    case Value::Kind::kSize:
      return write_size(value.as_size());
    case Value::Kind::kDict:
    case Value::Kind::kOrderedDict:
    case Value::Kind::kDefaultDict:
    case Value::Kind::kCounter:
      return write_dict(value);
    case Value::Kind::kDType:
      return write_dtype(value.as_dtype());
    case Value::Kind::kTensor:
      return tensor_(emitter_, value.tensor_index());
    case Value::Kind::kOpaque:
      return write_opaque(value.as_opaque());
    case Value::Kind::kList:
    case Value::Kind::kTuple:
    case Value::Kind::kSet:
    case Value::Kind::kFrozenSet:
      return write_list(value);
    default:
      return write_text(value);
  }
}

void ValueWriter::write_text(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::kBigInt:
      return emitter_.big_integer(value.as_string());
    case Value::Kind::kString:
      emitter_.string(value.as_string());
      return;
    case Value::Kind::kBytes:
      return emitter_.bytes(value.as_string());
    case Value::Kind::kByteArray:
      emitter_.global("__builtin__", "bytearray");
      emitter_.bytes(value.as_string());
      emitter_.tuple_n(1);
      return emitter_.reduce();
    case Value::Kind::kBytesIo:  // state: contents, position, attributes
      emitter_.global("_io", "BytesIO");
      emitter_.empty_tuple();
      emitter_.new_object();
      emitter_.bytes(value.as_string());
      emitter_.integer(0);
      emitter_.none();
      emitter_.tuple_n(3);
      return emitter_.build();
    case Value::Kind::kComplex: {
      const auto [re, im] = value.as_complex();
      emitter_.global("__builtin__", "complex");
      emitter_.real(re);
      emitter_.real(im);
      emitter_.tuple_n(2);
      return emitter_.reduce();
    }
    default:
      TESSERA_CHECK(false);
  }
}

void ValueWriter::write_items(const ValueList& items) {
  for (std::size_t i = 0; i < items.size(); i += kBatch) {
    emitter_.mark();
    for (std::size_t j = i; j < std::min(items.size(), i + kBatch); ++j) write(items[j]);
    emitter_.append_items();
  }
}

void ValueWriter::write_pairs(const ValueDict& pairs) {
  for (std::size_t i = 0; i < pairs.size(); i += kBatch) {
    emitter_.mark();
    for (std::size_t j = i; j < std::min(pairs.size(), i + kBatch); ++j) {
      write(pairs[j].first);
      write(pairs[j].second);
    }
    emitter_.set_items();
  }
}

void ValueWriter::write_tuple(const ValueList& items) {
  if (items.empty()) return emitter_.empty_tuple();
  if (items.size() > 3) emitter_.mark();
  for (const Value& item : items) write(item);
  if (items.size() > 3) {
    emitter_.tuple();
  } else {
    emitter_.tuple_n(static_cast<int>(items.size()));
  }
}

void ValueWriter::write_list(const Value& value) {
  const ValueList& items = value.as_list();
  if (value.kind() == Value::Kind::kTuple) return write_tuple(items);
  if (value.kind() == Value::Kind::kSet) emitter_.empty_set_call();
  if (value.kind() == Value::Kind::kFrozenSet) emitter_.global("__builtin__", "frozenset");
  emitter_.empty_list();
  if (value.kind() == Value::Kind::kList) made();
  write_items(items);
  if (value.kind() == Value::Kind::kList) return;
  emitter_.tuple_n(1);
  emitter_.reduce();
}

void ValueWriter::write_size(const std::vector<std::int64_t>& sizes) {
  emitter_.global("torch", "Size");
  emitter_.mark();
  for (const std::int64_t size : sizes) emitter_.integer(size);
  emitter_.tuple();
  emitter_.tuple_n(1);
  emitter_.reduce();
}

void ValueWriter::write_dict(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::kCounter:  // Counter({...}), as Python does: its items come before it
      emitter_.global("collections", "Counter");
      emitter_.empty_dict();
      write_pairs(value.as_dict());
      emitter_.tuple_n(1);
      return emitter_.reduce();
    case Value::Kind::kOrderedDict:
      emitter_.global("collections", "OrderedDict");
      emitter_.empty_tuple();
      emitter_.reduce();
      break;
    case Value::Kind::kDefaultDict:
      emitter_.global("collections", "defaultdict");
      if (value.attributes().is_none()) {
        emitter_.empty_tuple();
      } else {
        write(value.attributes());
        emitter_.tuple_n(1);
      }
      emitter_.reduce();
      break;
    default:
      emitter_.empty_dict();
  }
  made();
  write_pairs(value.as_dict());
  if (value.kind() != Value::Kind::kOrderedDict || value.attributes().is_none()) return;
  write(value.attributes());
  emitter_.build();
}

void ValueWriter::write_dtype(DType dtype) {
  if (dtype == DType::kFloat4 || dtype == DType::kFloat6E2M3 || dtype == DType::kFloat6E3M2)
    fail(Code::kUnsupported, fmt::format("PyTorch has no dtype {}", torch_name(dtype)));
  emitter_.global("torch", torch_name(dtype));
}

/// A nested class ("ShardedTensor.ProcessGroupState") is reached by getattr, as protocol 2 does;
/// so is the member of an enum, whose number does not follow from its name.
void ValueWriter::write_class(const OpaqueObject& object) {
  const std::size_t dot = object.name.find('.');
  if (dot == std::string::npos) {
    emitter_.global(object.module, object.name);
    return;
  }
  const auto owner = std::string_view(object.name).substr(0, dot);
  const auto attribute = std::string_view(object.name).substr(dot + 1);
  const bool is_value = object.how == OpaqueObject::How::kGlobal;
  if (!is_allowed_getattr(object.module, owner, attribute) &&
      !(is_value && is_enum_member(object.module, owner, attribute)))
    fail(Code::kUnsupported, fmt::format("pickle: the nested class {} cannot be written without "
                                         "getattr, which readers refuse",
                                         object.global()));
  emitter_.global("__builtin__", "getattr");
  emitter_.global(object.module, owner);
  emitter_.string(attribute);
  emitter_.tuple_n(2);
  emitter_.reduce();
}

void ValueWriter::write_opaque(const OpaqueObject& object) {
  using enum OpaqueObject::How;
  if (object.how == kPersistentId) return write_bare_storage(object);
  if (object.how == kExtension)
    fail(Code::kUnsupported,
         fmt::format("pickle: objects of class {} that hold each other in many ways, or too deep, "
                     "cannot be written",
                     object.global()));
  write_class(object);
  if (object.how == kGlobal) return;
  write(object.arguments);
  if (object.how == kNewObjEx) {
    write(object.keyword_arguments);
    emitter_.new_object_ex();
  } else if (object.how == kNewObj) {
    emitter_.new_object();
  } else {
    emitter_.reduce();
  }
  made();
  write_items(object.items);
  write_pairs(object.dict_items);
  if (!object.has_state) return;
  write(object.state);
  emitter_.build();
}

void ValueWriter::write_bare_storage(const OpaqueObject& object) {
  const Value& arguments = object.arguments;
  const bool known = arguments.kind() == Value::Kind::kTuple && arguments.as_list().size() == 2 &&
                     arguments.as_list()[0].is_tensor();
  if (!known || !storage_)
    fail(Code::kUnsupported, "pickle: a bare storage cannot be written here");
  const Value& dtype = arguments.as_list()[1];
  storage_(emitter_, arguments.as_list()[0].tensor_index(),
           dtype.is_none() ? std::nullopt : std::optional(dtype.as_dtype()));
}

}  // namespace

void write_value(PickleEmitter& emitter, const Value& value,
                 const std::function<void(PickleEmitter&, std::uint32_t)>& tensor,
                 const WriteStorage& storage) {
  ValueWriter writer(emitter, tensor, storage);
  writer.scan(value);
  writer.write(value);
}

}  // namespace tessera
