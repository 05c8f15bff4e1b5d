#pragma once
// The same value with other tensor indices. Shared nodes stay shared; what holds no tensor is
// returned as it is.
#include <tessera/state/value.h>

#include <cstdint>
#include <functional>
#include <unordered_map>

namespace tessera {

class TensorRemapper {
 public:
  /// `map` is called for every reference, in order; once per shared node.
  explicit TensorRemapper(std::function<std::uint32_t(std::uint32_t)> map) : map_(std::move(map)) {}
  Value operator()(const Value& value);

 private:
  Value rebuild(const Value& value, bool& changed);
  ValueList rebuild(const ValueList& items, bool& changed);
  ValueDict rebuild(const ValueDict& entries, bool& changed);
  Value rebuild(const OpaqueObject& object, bool& changed);

  std::function<std::uint32_t(std::uint32_t)> map_;
  std::unordered_map<const void*, Value> done_;
};

/// Whether a tensor stands anywhere inside.
bool holds_tensors(const Value& value);

}  // namespace tessera
