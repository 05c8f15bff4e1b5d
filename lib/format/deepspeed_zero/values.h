#pragma once
// Reading DeepSpeed's dictionaries, which are untrusted: every getter names the key it misses.
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

namespace tessera::deepspeed {

/// kCorrupt: the key is not there.
const Value& require(const Value& dict, std::string_view key);
/// kCorrupt unless a dict (either kind).
const ValueDict& dict_of(const Value& value, std::string_view what);
/// A list or tuple; kCorrupt otherwise.
const ValueList& list_of(const Value& value, std::string_view what);
/// A non-negative integer (or an IntEnum of one); kCorrupt otherwise.
std::int64_t count_of(const Value& value, std::string_view what);
std::string text_of(const Value& value, std::string_view what);
std::vector<std::int64_t> counts_of(const Value& value, std::string_view what);
/// torch.Size, or a list or tuple of integers.
Shape shape_of(const Value& value, std::string_view what);
std::vector<std::string> texts_of(const Value& value, std::string_view what);

struct NamedShape {
  std::string name;
  Shape shape;
};
struct NamedTensor {
  std::string name;
  std::uint32_t tensor = 0;  // in its archive
};
std::vector<NamedShape> shapes_of(const Value& value, std::string_view what);
std::vector<NamedTensor> tensors_of(const Value& value, std::string_view what);
/// A list of tensors, or one tensor.
std::vector<std::uint32_t> tensor_list_of(const Value& value, std::string_view what);

Value text(std::string_view s);
Path path_of(std::initializer_list<std::string_view> keys);
/// A dotted root cut in keys; "" is the empty path.
Path root_path(std::string_view root);

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
