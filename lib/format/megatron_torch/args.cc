#include "lib/format/megatron_torch/args.h"

#include <algorithm>

namespace tessera::megatron_torch {
namespace {

/// Sets or (where `append`) adds one attribute.
void put(ValueDict& dict, const std::string& name, const Value& value, bool append) {
  const auto found = std::ranges::find_if(dict, [&](const auto& item) {
    return item.first.is_string() && item.first.as_string() == name;
  });
  if (found != dict.end()) {
    found->second = value;
  } else if (append) {
    dict.emplace_back(Value::string(name), value);
  }
}

const Value* attributes_of(const Value& value) {
  if (value.is_dict()) return &value;
  if (value.kind() != Value::Kind::kOpaque) return nullptr;
  const OpaqueObject& object = value.as_opaque();
  return object.has_state && object.state.is_dict() ? &object.state : nullptr;
}

}  // namespace

bool Args::known() const { return attributes() != nullptr; }

const Value* Args::attributes() const { return attributes_of(value_); }

bool Args::is_namespace() const { return known() && value_.kind() == Value::Kind::kOpaque; }

const Value* Args::attribute(std::string_view name) const {
  const Value* attributes = attributes_of(value_);
  return attributes ? attributes->find(name) : nullptr;
}

std::optional<std::int64_t> Args::integer(std::string_view name) const {
  const Value* value = attribute(name);
  return value && value->is_int() ? std::optional(value->as_int()) : std::nullopt;
}

std::optional<bool> Args::boolean(std::string_view name) const {
  const Value* value = attribute(name);
  return value && value->kind() == Value::Kind::kBool ? std::optional(value->as_bool())
                                                      : std::nullopt;
}

std::optional<bool> Args::gated() const {
  std::optional<bool> out;
  for (const std::string_view name : {"swiglu", "gated_linear_unit", "geglu", "quick_geglu"})
    if (const auto stated = boolean(name)) out = out.value_or(false) || *stated;
  return out;
}

Value Args::with(const std::vector<std::pair<std::string, Value>>& set,
                 const std::vector<std::pair<std::string, Value>>& added) const {
  const Value* attributes = attributes_of(value_);
  if (!attributes) return value_;
  ValueDict dict = attributes->as_dict();
  for (const auto& [name, value] : set) put(dict, name, value, false);
  for (const auto& [name, value] : added) put(dict, name, value, true);
  if (value_.is_dict()) return Value::dict_of(value_.kind(), std::move(dict), value_.attributes());
  OpaqueObject object = value_.as_opaque();
  object.state = Value::dict(std::move(dict));
  return Value::opaque(std::move(object));
}

}  // namespace tessera::megatron_torch
