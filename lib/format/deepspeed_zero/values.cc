// Loss scalers are pickled objects of DeepSpeed's. Here they are plain dicts with their class's
// name, so that formats without pickle can hold them and a DeepSpeed file gets the object back.
#include "lib/format/deepspeed_zero/values.h"

#include <algorithm>

#include "lib/format/deepspeed_zero/names.h"

namespace tessera::deepspeed {
namespace {

constexpr std::string_view kClass = "class";

}  // namespace

std::vector<NamedShape> shapes_of(const Field& field) {
  std::vector<NamedShape> shapes;
  for (const auto& [key, shape] : field.entries()) shapes.push_back({key.text(), shape.shape()});
  return shapes;
}

std::vector<NamedTensor> tensors_of(const Field& field) {
  std::vector<NamedTensor> tensors;
  for (const auto& [key, tensor] : field.entries())
    tensors.push_back({key.text(), tensor.tensor()});
  return tensors;
}

std::vector<std::uint32_t> tensor_list_of(const Field& field) {
  if (field.value().is_tensor()) return {field.tensor()};
  std::vector<std::uint32_t> tensors;
  for (const Field& item : field.items()) tensors.push_back(item.tensor());
  return tensors;
}

Value text(std::string_view s) { return Value::string(std::string(s)); }

Path path_of(std::initializer_list<std::string_view> keys) {
  Path path;
  for (const std::string_view key : keys) path.push_back(key_item(key));
  return path;
}

Value plain_scaler(const Value& value) {
  if (value.kind() != Value::Kind::kOpaque) return value;
  const OpaqueObject& object = value.as_opaque();
  if (object.module != kScalerModule || !object.has_state || !object.state.is_dict()) return value;
  ValueDict plain{{text(kClass), Value::string(object.name)}};
  for (const auto& field : object.state.as_dict()) plain.push_back(field);
  return Value::dict(std::move(plain));
}

Value scaler_object(const Value& plain) {
  const Value* name = plain.find(kClass);
  if (!name || !name->is_string()) return plain;
  ValueDict fields;
  for (const auto& field : plain.as_dict())
    if (!(field.first.is_string() && field.first.as_string() == kClass)) fields.push_back(field);
  OpaqueObject object;
  object.how = OpaqueObject::How::kNewObj;
  object.module = std::string(kScalerModule);
  object.name = name->as_string();
  object.arguments = Value::list({}, Value::Kind::kTuple);
  object.state = Value::dict(std::move(fields));
  object.has_state = true;
  return Value::opaque(std::move(object));
}

Value default_scaler(const Value& globals, const Value* ds_config) {
  const auto either = [](const Value* found, Value otherwise) {
    return found && !found->is_none() ? *found : std::move(otherwise);
  };
  const Value* dynamic = globals.find("dynamic_loss_scale");
  const bool is_dynamic = dynamic && *dynamic == Value::boolean(true) && globals.find("cur_scale");
  ValueDict out{{text(kClass), text(is_dynamic ? "DynamicLossScaler" : "LossScaler")},
                {text("cur_scale"), either(globals.find("cur_scale"), Value::real(1.0))},
                {text("dynamic"), Value::boolean(is_dynamic)}};
  if (!is_dynamic) return Value::dict(std::move(out));
  const Value* fp16 = ds_config ? ds_config->find("fp16") : nullptr;
  const auto option = [&](std::string_view key, Value otherwise) {
    return either(fp16 ? fp16->find(key) : nullptr, std::move(otherwise));
  };
  const auto add = [&out](std::string_view key, Value value) {
    out.emplace_back(text(key), std::move(value));
  };
  add("cur_iter", either(globals.find("cur_iter"), Value::integer(0)));
  add("last_overflow_iter", either(globals.find("last_overflow_iter"), Value::integer(-1)));
  add("scale_factor", either(globals.find("scale_factor"), Value::real(2.0)));
  add("scale_window", either(globals.find("scale_window"), Value::integer(1000)));
  add("min_scale", option("min_loss_scale", Value::integer(1)));
  add("delayed_shift", option("hysteresis", Value::integer(2)));
  add("cur_hysteresis", option("hysteresis", Value::integer(2)));
  add("consecutive_hysteresis", option("consecutive_hysteresis", Value::boolean(false)));
  add("raise_error_at_min_scale", Value::boolean(true));
  add("dtype", Value::dtype(DType::kFloat16));
  return Value::dict(std::move(out));
}

Value fragment_address(std::int64_t numel, std::int64_t start) {
  OpaqueObject object;
  object.how = OpaqueObject::How::kNewObj;
  object.module = std::string(kFragmentModule);
  object.name = std::string(kFragmentClass);
  object.arguments = Value::list({}, Value::Kind::kTuple);
  object.state =
      Value::dict({{text("numel"), Value::integer(numel)}, {text("start"), Value::integer(start)}});
  object.has_state = true;
  return Value::opaque(std::move(object));
}

bool take_whole_globals(const StateEntry& entry, StateDict& fields) {
  const bool whole =
      entry.path.size() == 1 && entry.path[0].text() == kGlobalsRoot && entry.value.is_dict() &&
      std::ranges::all_of(entry.value.as_dict(), [](const auto& e) { return e.first.is_string(); });
  if (!whole) return false;
  for (const auto& [key, value] : entry.value.as_dict())
    fields.entries.push_back({key.as_string(), {key_item(key.as_string())}, value});
  return true;
}

}  // namespace tessera::deepspeed
