#include "fsdp_core/state_dict/full_manifest.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/encoding/pickle_reader.h>
#include <tessera/encoding/pickle_writer.h>
#include <tessera/storage/checksum.h>

#include <optional>

#include "fsdp_core/bridge/dtype.h"

namespace tessera::fsdp {
namespace {

// Between ranks: a list of [path, None, value] or [path, dtype, shape].

Value path_value(const Path& path) {
  ValueList items;
  for (const PathItem& item : path) {
    if (item.kind == PathItem::Kind::kKey)
      items.push_back(Value::string(item.key));
    else
      items.push_back(Value::list(
          {Value::boolean(item.kind == PathItem::Kind::kIntKey), Value::integer(item.index)}));
  }
  return Value::list(std::move(items));
}

Path path_of(const Value& value) {
  Path out;
  for (const Value& item : value.as_list()) {
    if (item.is_string())
      out.push_back(key_item(item.as_string()));
    else if (item.as_list()[0].as_bool())
      out.push_back(int_key_item(item.as_list()[1].as_int()));
    else
      out.push_back(index_item(item.as_list()[1].as_int()));
  }
  return out;
}

std::string text_of(const StateEntry& entry) {
  const Value& value = entry.value;
  if (value.is_string()) return value.as_string();
  if (value.is_int()) return fmt::format("{}", value.as_int());
  if (value.is_number()) return fmt::format("{}", value.as_real());
  if (value.kind() == Value::Kind::kBool) return value.as_bool() ? "True" : "False";
  if (value.is_none()) return "None";
  Manifest alone;
  alone.state.entries.push_back(entry);
  return "a value with digest " + hex(sha256(packed(alone))).substr(0, 16);
}

/// The text of a tensor of one number whose value is on this rank; otherwise empty.
std::string text_of(const LiveTensor& tensor) {
  if (tensor.spec.shape.numel() != 1 || tensor.pieces.empty()) return {};
  void* data = tensor.pieces.front().data;
  const at::Tensor one = at::from_blob(data, {}, at::dtype(scalar_type_of(tensor.spec.dtype)));
  return c10::str(" ", one.item());
}

}  // namespace

Manifest manifest_of(const LiveState& full) {
  Manifest out;
  for (const StateEntry& entry : full.dict().entries) {
    StateEntry copy = entry;
    if (entry.value.is_tensor()) {
      StoredTensor stored;
      stored.name = entry.name;
      stored.spec = full.tensors()[entry.value.tensor_index()].spec;
      copy.value = Value::tensor(static_cast<std::uint32_t>(out.tensors.size()));
      out.tensors.push_back(std::move(stored));
    }
    out.state.entries.push_back(std::move(copy));
  }
  return out;
}

Bytes packed(const Manifest& manifest) {
  ValueList entries;
  for (const StateEntry& entry : manifest.state.entries) {
    if (!entry.value.is_tensor()) {
      entries.push_back(Value::list({path_value(entry.path), Value(), entry.value}));
      continue;
    }
    const TensorSpec& spec = manifest.tensors[entry.value.tensor_index()].spec;
    entries.push_back(
        Value::list({path_value(entry.path), Value::string(std::string(torch_name(spec.dtype))),
                     Value::size({spec.shape.extents().begin(), spec.shape.extents().end()})}));
  }
  PickleEmitter out;
  write_value(out, Value::list(std::move(entries)), [](PickleEmitter&, std::uint32_t) {
    fail(Code::kUnsupported, "a tensor inside a value of a full state");
  });
  return out.finish();
}

Manifest unpacked(ByteView bytes) {
  const PickleGraph graph = read_pickle(bytes);
  Manifest out;
  const auto plain = [](const PickleGraph&, PickleGraph::Node) { return std::optional<Value>(); };
  const Value tree = decode_pickle(graph, graph.root(), plain);
  for (const Value& item : tree.as_list()) {
    const ValueList& parts = item.as_list();
    StateEntry entry;
    entry.path = path_of(parts[0]);
    entry.name = dotted(entry.path);
    entry.value = parts[2];
    if (!parts[1].is_none()) {
      StoredTensor stored;
      stored.name = entry.name;
      stored.spec = {dtype_from_torch_name(parts[1].as_string()).value(),
                     Shape(parts[2].as_size())};
      entry.value = Value::tensor(static_cast<std::uint32_t>(out.tensors.size()));
      out.tensors.push_back(std::move(stored));
    }
    out.state.entries.push_back(std::move(entry));
  }
  return out;
}

std::string scalar_lines(const LiveState& full) {
  std::string out;
  for (const StateEntry& entry : full.dict().entries) {
    out += fmt::format("\"{}\" ", entry.name.view());
    if (entry.value.is_tensor()) {
      const LiveTensor& tensor = full.tensors()[entry.value.tensor_index()];
      out += tensor.spec.to_string() + text_of(tensor);
    } else {
      out += printable(text_of(entry));
    }
    out += '\n';
  }
  return out;
}

}  // namespace tessera::fsdp
