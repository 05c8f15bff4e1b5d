#include "lib/state/edit/tensor_remapper.h"

#include <tessera/state/roles.h>

#include <unordered_set>
#include <utility>

namespace tessera {

Value TensorRemapper::operator()(const Value& value) {
  if (value.is_tensor()) return Value::tensor(map_(value.tensor_index()));
  const void* node = value.node_id();
  if (node == nullptr) return value;
  if (const auto known = done_.find(node); known != done_.end()) return known->second;
  bool changed = false;
  Value fresh = rebuild(value, changed);
  if (!changed) fresh = value;
  done_.emplace(node, fresh);
  return fresh;
}

Value TensorRemapper::rebuild(const Value& value, bool& changed) {
  switch (value.kind()) {
    case Value::Kind::kList:
    case Value::Kind::kTuple:
    case Value::Kind::kSet:
    case Value::Kind::kFrozenSet:
      return Value::list(rebuild(value.as_list(), changed), value.kind());
    case Value::Kind::kDict:
    case Value::Kind::kOrderedDict:
    case Value::Kind::kDefaultDict:
    case Value::Kind::kCounter: {
      Value attributes = (*this)(value.attributes());
      changed = changed || attributes.node_id() != value.attributes().node_id();
      return Value::dict_of(value.kind(), rebuild(value.as_dict(), changed), std::move(attributes));
    }
    case Value::Kind::kOpaque:
      return rebuild(value.as_opaque(), changed);
    default:
      return value;
  }
}

ValueList TensorRemapper::rebuild(const ValueList& items, bool& changed) {
  ValueList out;
  out.reserve(items.size());
  for (const Value& item : items) {
    out.push_back((*this)(item));
    changed = changed || item.is_tensor() || out.back().node_id() != item.node_id();
  }
  return out;
}

ValueDict TensorRemapper::rebuild(const ValueDict& entries, bool& changed) {
  ValueDict out;
  out.reserve(entries.size());
  for (const auto& [key, item] : entries) {
    out.emplace_back((*this)(key), (*this)(item));
    changed = changed || key.is_tensor() || item.is_tensor() ||
              out.back().first.node_id() != key.node_id() ||
              out.back().second.node_id() != item.node_id();
  }
  return out;
}

Value TensorRemapper::rebuild(const OpaqueObject& object, bool& changed) {
  OpaqueObject out = object;
  ValueList parts = rebuild({object.arguments, object.keyword_arguments, object.state}, changed);
  out.arguments = std::move(parts[0]);
  out.keyword_arguments = std::move(parts[1]);
  out.state = std::move(parts[2]);
  out.items = rebuild(object.items, changed);
  out.dict_items = rebuild(object.dict_items, changed);
  return Value::opaque(std::move(out));
}

namespace {

/// The order of TensorRemapper, without building anything.
class TensorWalk {
 public:
  explicit TensorWalk(const std::function<void(std::uint32_t)>& visit) : visit_(visit) {}

  void operator()(const Value& value) {
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

bool holds_tensors(const Value& value) {
  bool found = false;
  for_each_tensor(value, [&found](std::uint32_t) { found = true; });
  return found;
}

}  // namespace tessera
