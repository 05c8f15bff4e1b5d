#include "lib/state/tensor_wrapper.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/state/listed_tensors.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <unordered_set>

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

constexpr int kDeepest = 8;  // wrappers inside of each other

bool is_wrapper(const Value& value) { return rebuild_arguments(value) != nullptr; }

using Parts = std::vector<std::pair<std::string, std::uint32_t>>;

void add_parts(const Value& value, const std::string& prefix, int depth, Parts& parts) {
  const ValueList* arguments = rebuild_arguments(value);
  if (arguments == nullptr || arguments->size() < 4 || depth == kDeepest) return;
  const auto add = [&](const Value& attributes) {
    if (!attributes.is_dict()) return;
    for (const auto& [key, part] : attributes.as_dict()) {
      if (!key.is_string()) continue;
      if (part.is_tensor())
        parts.emplace_back(prefix + key.as_string(), part.tensor_index());
      else if (is_wrapper(part))
        add_parts(part, prefix + key.as_string() + ".", depth + 1, parts);
    }
  };
  const Value& state = (*arguments)[3];
  if (state.kind() == Value::Kind::kTuple) {
    for (const Value& attributes : state.as_list()) add(attributes);
  } else {
    add(state);
  }
}

Value without_parts(const Value& value, int depth) {
  const ValueList* arguments = rebuild_arguments(value);
  if (arguments == nullptr || arguments->size() < 4 || depth == kDeepest) return value;
  const auto without = [depth](const Value& attributes) {
    if (!attributes.is_dict()) return attributes;
    ValueDict kept = attributes.as_dict();
    for (auto& [key, part] : kept) {
      if (!key.is_string()) continue;
      part = part.is_tensor() ? Value() : without_parts(part, depth + 1);
    }
    return Value::dict_of(attributes.kind(), std::move(kept), attributes.attributes());
  };
  ValueList changed = *arguments;
  if (changed[3].kind() == Value::Kind::kTuple) {
    ValueList state = changed[3].as_list();
    for (Value& attributes : state) attributes = without(attributes);
    changed[3] = Value::list(std::move(state), Value::Kind::kTuple);
  } else {
    changed[3] = without(changed[3]);
  }
  OpaqueObject object = value.as_opaque();
  object.arguments = Value::list(std::move(changed), Value::Kind::kTuple);
  return Value::opaque(std::move(object));
}

/// The object with another tensor in the place of one.
Value with_part(const Value& value, std::uint32_t old, std::uint32_t replacement) {
  std::vector<std::uint32_t> numbers;
  for_each_tensor(value, [&](std::uint32_t tensor) {
    if (numbers.size() <= tensor) numbers.resize(std::size_t{tensor} + 1, kNoTensor);
    numbers[tensor] = tensor == old ? replacement : tensor;
  });
  return remap_tensors(value, numbers);
}

}  // namespace

std::string wrapper_class(const Value& value) {
  const ValueList* arguments = rebuild_arguments(value);
  return arguments == nullptr ? "" : (*arguments)[1].as_opaque().global();
}

bool is_numpy_array(const Value& value) {
  if (value.kind() != Value::Kind::kOpaque) return false;
  const OpaqueObject& object = value.as_opaque();
  return object.module.starts_with("numpy.") &&
         (object.name == "_reconstruct" || object.name == "_frombuffer");
}

std::string object_class(const Value& object) {
  if (std::string wrapper = wrapper_class(object); !wrapper.empty()) return wrapper;
  if (is_numpy_array(object) && object.as_opaque().name == "_frombuffer") return "numpy.ndarray";
  const OpaqueObject& made = object.as_opaque();
  const bool by_base = made.global() == "copyreg._reconstructor" || is_numpy_array(object);
  const bool named = by_base && made.arguments.kind() == Value::Kind::kTuple &&
                     !made.arguments.as_list().empty() &&
                     made.arguments.as_list()[0].kind() == Value::Kind::kOpaque;
  return named ? made.arguments.as_list()[0].as_opaque().global() : made.global();
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
  add_parts(value, "", 0, parts);
  return parts;
}

Value without_parts(const Value& value) { return without_parts(value, 0); }

std::vector<PartRow> part_rows(const StateDict& state) {
  std::vector<PartRow> rows;
  for (std::size_t e = 0; e < state.entries.size(); ++e)
    if (state.entries[e].value.kind() == Value::Kind::kOpaque)
      for (auto& [name, tensor] : wrapper_parts(state.entries[e].value))
        rows.push_back({e, "#" + name, tensor});
  if (rows.empty()) return rows;
  std::unordered_set<std::string> taken;
  for (const StateEntry& entry : state.entries)
    if (entry.name.view().find('#') != std::string_view::npos) taken.emplace(entry.name);
  for (PartRow& row : rows) {
    const std::string name(state.entries[row.entry].name), part = row.suffix.substr(1);
    for (int n = 2; !taken.insert(name + row.suffix).second; ++n)
      row.suffix = fmt::format("#{}.{}", n, part);
  }
  return rows;
}

void name_parts(Manifest& manifest) {
  const std::vector<PartRow> rows = part_rows(manifest.state);
  std::unordered_set<std::uint32_t> named;
  for (const PartRow& row : rows) {
    StateEntry& entry = manifest.state.entries[row.entry];
    std::uint32_t number = row.tensor;
    if (!named.insert(number).second) {
      number = static_cast<std::uint32_t>(manifest.tensors.size());
      manifest.tensors.push_back(StoredTensor(manifest.tensors[row.tensor]));
      entry.value = with_part(entry.value, row.tensor, number);
      named.insert(number);
    }
    manifest.tensors[number].name = entry.name + row.suffix;
  }
}

std::vector<std::uint32_t> listed_tensors(const Manifest& manifest) {
  std::vector<bool> is_part(manifest.tensors.size(), false);
  for (const PartRow& row : part_rows(manifest.state)) is_part[row.tensor] = true;
  std::vector<std::uint32_t> listed;
  for (std::uint32_t i = 0; i < manifest.tensors.size(); ++i)
    if (!manifest.tensors[i].embedded || is_part[i]) listed.push_back(i);
  return listed;
}

}  // namespace tessera
