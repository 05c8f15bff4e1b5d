#include "lib/state/edit/tensor_remapper.h"

#include <tessera/state/roles.h>

#include <unordered_set>
#include <utility>

namespace tessera {

Value TensorRemapper::operator()(const Value& value) {
  if (value.is_tensor()) return Value::tensor(map_(value.tensor_index()));
  if (!value.holds_tensors()) return value;
  const void* node = value.node_id();
  if (const auto known = done_.find(node); known != done_.end()) return known->second;
  return done_.emplace(node, rebuild(value)).first->second;
}

Value TensorRemapper::rebuild(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::kList:
    case Value::Kind::kTuple:
    case Value::Kind::kSet:
    case Value::Kind::kFrozenSet:
      return Value::list(rebuild(value.as_list()), value.kind());
    case Value::Kind::kDict:
    case Value::Kind::kOrderedDict:
    case Value::Kind::kDefaultDict:
    case Value::Kind::kCounter: {
      Value attributes = (*this)(value.attributes());
      return Value::dict_of(value.kind(), rebuild(value.as_dict()), std::move(attributes));
    }
    case Value::Kind::kOpaque:
      return rebuild(value.as_opaque());
    default:
      return value;
  }
}

ValueList TensorRemapper::rebuild(const ValueList& items) {
  ValueList out;
  out.reserve(items.size());
  for (const Value& item : items) out.push_back((*this)(item));
  return out;
}

ValueDict TensorRemapper::rebuild(const ValueDict& entries) {
  ValueDict out;
  out.reserve(entries.size());
  for (const auto& [key, item] : entries) {
    Value fresh = (*this)(key);
    out.emplace_back(std::move(fresh), (*this)(item));
  }
  return out;
}

Value TensorRemapper::rebuild(const OpaqueObject& object) {
  OpaqueObject out = object;
  out.arguments = (*this)(object.arguments);
  out.keyword_arguments = (*this)(object.keyword_arguments);
  out.state = (*this)(object.state);
  out.items = rebuild(object.items);
  out.dict_items = rebuild(object.dict_items);
  return Value::opaque(std::move(out));
}

namespace {

/// The order of TensorRemapper, without building anything.
class TensorWalk {
 public:
  explicit TensorWalk(const std::function<void(std::uint32_t)>& visit) : visit_(visit) {}

  void operator()(const Value& value) {
    if (!value.holds_tensors()) return;
    switch (value.kind()) {
      case Value::Kind::kTensor:
        return visit_(value.tensor_index());
      case Value::Kind::kList:
      case Value::Kind::kTuple:
      case Value::Kind::kSet:
      case Value::Kind::kFrozenSet:
        if (is_new(value)) walk(value.as_list());
        return;
      case Value::Kind::kDict:
      case Value::Kind::kOrderedDict:
      case Value::Kind::kDefaultDict:
      case Value::Kind::kCounter:
        if (!is_new(value)) return;
        (*this)(value.attributes());
        return walk(value.as_dict());
      case Value::Kind::kOpaque:
        if (is_new(value)) walk(value.as_opaque());
        return;
      default:
        return;
    }
  }

 private:
  bool is_new(const Value& value) { return done_.insert(value.node_id()).second; }
  void walk(const ValueList& items) {
    for (const Value& item : items) (*this)(item);
  }
  void walk(const ValueDict& entries) {
    for (const auto& [key, item] : entries) {
      (*this)(key);
      (*this)(item);
    }
  }
  void walk(const OpaqueObject& object) {
    (*this)(object.arguments);
    (*this)(object.keyword_arguments);
    (*this)(object.state);
    walk(object.items);
    walk(object.dict_items);
  }

  const std::function<void(std::uint32_t)>& visit_;
  std::unordered_set<const void*> done_;
};

}  // namespace

void for_each_tensor(const Value& value, const std::function<void(std::uint32_t)>& visit) {
  TensorWalk{visit}(value);
}

}  // namespace tessera
