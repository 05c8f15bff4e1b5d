#include "lib/state/tensor_wrapper.h"

#include <tessera/base/error.h>

namespace tessera {
namespace {

/// The arguments of the call that rebuilds a subclass, or nullptr.
const ValueList* rebuild_arguments(const Value& value) {
  if (value.kind() != Value::Kind::kOpaque) return nullptr;
  const OpaqueObject& object = value.as_opaque();
  const bool rebuilds =
      object.module == "torch._tensor" && object.name.starts_with("_rebuild_from_type");
  if (!rebuilds || object.arguments.kind() != Value::Kind::kTuple) return nullptr;
  const ValueList& arguments = object.arguments.as_list();
  const bool named = arguments.size() > 1 && arguments[1].kind() == Value::Kind::kOpaque;
  return named ? &arguments : nullptr;
}

std::optional<Shape> shape_in(const Value& value) {
  std::vector<std::int64_t> extents;
  if (value.kind() == Value::Kind::kSize) {
    extents = value.as_size();
  } else if (value.kind() == Value::Kind::kTuple || value.kind() == Value::Kind::kList) {
    for (const Value& extent : value.as_list()) {
      if (!extent.is_int()) return std::nullopt;
      extents.push_back(extent.as_int());
    }
  } else {
    return std::nullopt;
  }
  try {
    return Shape::checked(extents);
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

std::string wrapper_class(const Value& value) {
  const ValueList* arguments = rebuild_arguments(value);
  return arguments == nullptr ? "" : (*arguments)[1].as_opaque().global();
}

std::optional<TensorSpec> wrapper_spec(const Value& value) {
  const ValueList* arguments = rebuild_arguments(value);
  if (arguments == nullptr || arguments->size() < 3 ||
      (*arguments)[2].kind() != Value::Kind::kTuple)
    return std::nullopt;
  const ValueList& wrapper = (*arguments)[2].as_list();
  if (wrapper.size() < 3 || wrapper[1].kind() != Value::Kind::kDType) return std::nullopt;
  const std::optional<Shape> shape = shape_in(wrapper[2]);
  if (!shape) return std::nullopt;
  return TensorSpec{wrapper[1].as_dtype(), *shape};
}

std::vector<std::pair<std::string, std::uint32_t>> wrapper_parts(const Value& value) {
  std::vector<std::pair<std::string, std::uint32_t>> parts;
  const ValueList* arguments = rebuild_arguments(value);
  if (arguments == nullptr || arguments->size() < 4) return parts;
  const auto add = [&parts](const Value& attributes) {
    if (!attributes.is_dict()) return;
    for (const auto& [key, part] : attributes.as_dict())
      if (key.is_string() && part.is_tensor())
        parts.emplace_back(key.as_string(), part.tensor_index());
  };
  const Value& state = (*arguments)[3];
  if (state.kind() == Value::Kind::kTuple) {
    for (const Value& attributes : state.as_list()) add(attributes);
  } else {
    add(state);
  }
  return parts;
}

}  // namespace tessera
