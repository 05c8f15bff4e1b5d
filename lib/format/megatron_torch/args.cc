#include "lib/format/megatron_torch/args.h"

#include <algorithm>

#include "lib/state/fields.h"

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

}  // namespace

bool Args::known() const { return attributes() != nullptr; }

const Value* Args::attributes() const {
  if (value_.is_dict()) return &value_;
  if (value_.kind() != Value::Kind::kOpaque) return nullptr;
  const OpaqueObject& object = value_.as_opaque();
  return object.has_state && object.state.is_dict() ? &object.state : nullptr;
}

bool Args::is_namespace() const { return known() && value_.kind() == Value::Kind::kOpaque; }

std::optional<std::int64_t> Args::integer(std::string_view name) const {
  return integer_in(value_, name);
}

std::optional<bool> Args::boolean(std::string_view name) const { return flag_in(value_, name); }

std::string Args::text(std::string_view name) const {
  const Value* value = member(value_, name);
  return value != nullptr && value->is_string() ? value->as_string() : "";
}

std::optional<bool> Args::gated() const {
  std::optional<bool> out;
  for (const std::string_view name : {"swiglu", "gated_linear_unit", "geglu", "quick_geglu"})
    if (const auto stated = boolean(name)) out = out.value_or(false) || *stated;
  return out;
}

Value Args::with(const std::vector<std::pair<std::string, Value>>& set,
                 const std::vector<std::pair<std::string, Value>>& added) const {
  const Value* known = attributes();
  if (!known) return value_;
  ValueDict dict = known->as_dict();
  for (const auto& [name, value] : set) put(dict, name, value, false);
  for (const auto& [name, value] : added) put(dict, name, value, true);
  if (value_.is_dict()) return Value::dict_of(value_.kind(), std::move(dict), value_.attributes());
  OpaqueObject object = value_.as_opaque();
  object.state = Value::dict(std::move(dict));
  return Value::opaque(std::move(object));
}

Args args_of(const StateDict& state) {
  const StateEntry* stated = state.find("args");
  return stated != nullptr ? Args(stated->value) : Args();
}

}  // namespace tessera::megatron_torch
