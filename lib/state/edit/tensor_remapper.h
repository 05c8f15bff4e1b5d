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
  Value rebuild(const Value& value);
  ValueList rebuild(const ValueList& items);
  ValueDict rebuild(const ValueDict& entries);
  Value rebuild(const OpaqueObject& object);

  std::function<std::uint32_t(std::uint32_t)> map_;
  std::unordered_map<const void*, Value> done_;
};

}  // namespace tessera
