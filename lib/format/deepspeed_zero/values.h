#pragma once
// What DeepSpeed's dictionaries hold again and again: named shapes and tensors, loss scalers.
#include <tessera/encoding/torch_archive.h>
#include <tessera/state/value.h>
#include <tessera/tensor/shape.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/state/fields.h"

namespace tessera::deepspeed {

struct NamedShape {
  std::string name;
  Shape shape;
};
struct NamedTensor {
  std::string name;
  std::uint32_t tensor = 0;  // in its archive
};
std::vector<NamedShape> shapes_of(const Field& field);
std::vector<NamedTensor> tensors_of(const Field& field);
/// A list of tensors, or one tensor.
std::vector<std::uint32_t> tensor_list_of(const Field& field);

Value text(std::string_view s);
Path path_of(std::initializer_list<std::string_view> keys);

/// LossScaler and its kin as plain values, {"class": name, fields...}, and back. What is no such
/// object (no such dict) comes back as it is.
Value plain_scaler(const Value& value);
Value scaler_object(const Value& plain);
/// The plain values of a scaler for an engine that recorded none: that of its optimizer without
/// ZeRO (`cur_scale` and its kin among `globals`), with what it leaves open from ds_config; else a
/// static one of 1.
Value default_scaler(const Value& globals, const Value* ds_config);
/// fragment_address(numel, start), which ds_to_universal asks for.
Value fragment_address(std::int64_t numel, std::int64_t start);

/// Formats that do not enter dicts hold the engine's fields as one value, `deepspeed`: its items
/// become entries of `fields`. False for any other entry.
bool take_whole_globals(const StateEntry& entry, StateDict& fields);

}  // namespace tessera::deepspeed
