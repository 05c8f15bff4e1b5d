// Snapshots say nowhere whether they are JSON or YAML: the first character decides. Fields are
// checked alike in both, and a key that was a bool is text, as its path has it.
#include "lib/format/torchsnapshot/metadata.h"

#include <fmt/format.h>
#include <tessera/base/checked.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/encoding/json.h>

#include <array>
#include <bit>
#include <charconv>
#include <limits>

#include "lib/format/torchsnapshot/base64.h"
#include "lib/format/torchsnapshot/yaml.h"
#include "lib/state/fields.h"

namespace tessera::snapshot {
namespace {

constexpr std::int64_t kMaxWorldSize = 1 << 20;

/// Absent in the oldest snapshots.
bool flag_or_false(const Field& object, std::string_view name) {
  const auto field = object.find_present(name);
  return field && field->flag();
}

DType dtype_field(const Field& object) {
  const Field field = object.at("dtype");
  const std::string& name = field.text();
  constexpr std::string_view kPrefix = "torch.";
  if (name.starts_with(kPrefix))
    if (const auto dtype = dtype_from_torch_name(std::string_view(name).substr(kPrefix.size())))
      return *dtype;
  field.refuse("the name of a dtype");
}

Serializer serializer_field(const Field& object) {
  const std::string name = object.at("serializer").text();
  if (name == "buffer_protocol") return Serializer::kBuffer;
  if (name == "torch_save") return Serializer::kTorchSave;
  fail(Code::kUnsupported, fmt::format("the serializer \"{}\" is not known", printable(name)));
}

StoredPart read_part(const Field& object) {
  StoredPart part;
  part.location = object.at("location").text();
  part.serializer = serializer_field(object);
  part.spec = {dtype_field(object), object.at("shape").shape()};
  if (const auto range = object.find_present("byte_range")) {
    const auto ends = range->counts();
    if (ends.size() != 2 || ends[0] > ends[1]) range->refuse("a range of bytes");
    part.range.emplace(ends[0], ends[1]);
  }
  return part;
}

TensorPart read_shard(const Field& object) {
  TensorPart out;
  const auto sizes = object.at("sizes").counts();
  out.box = {object.at("offsets").counts(), Shape::checked(sizes)};
  out.part = read_part(object.at("tensor"));
  if (out.box.origin.size() != sizes.size()) object.corrupt("offsets and sizes differ in length");
  for (int d = 0; d < out.box.rank(); ++d)
    if (!checked_add(out.box.begin(d), out.box.shape[d])) object.corrupt("offset + size overflows");
  if (out.part.spec.shape.numel() != out.box.numel())
    object.corrupt(fmt::format("a shard of sizes {} is stored as {}", out.box.shape.to_string(),
                               out.part.spec.to_string()));
  return out;
}

/// Shards of one tensor agree in rank and dtype; `spec` takes the smallest shape that holds them.
void read_shards(const Field& object, std::string_view name, Entry& entry) {
  for (const Field& item : object.at(name).items()) {
    TensorPart shard = read_shard(item);
    const Shape& shape = shard.box.shape;
    if (entry.parts.empty()) {
      entry.spec = {shard.part.spec.dtype, shape};
    } else if (entry.spec.shape.rank() != shape.rank() ||
               entry.spec.dtype != shard.part.spec.dtype) {
      item.corrupt("its shards differ in dtype or number of dimensions");
    }
    for (int d = 0; d < shape.rank(); ++d)
      entry.spec.shape[d] = std::max(entry.spec.shape[d], shard.box.end(d));
    entry.parts.push_back(std::move(shard));
  }
  if (!entry.parts.empty()) Shape::checked(entry.spec.shape.extents());
}

/// A scalar was cut as if it had one dimension of one element.
void read_chunked(const Field& object, Entry& entry) {
  read_shards(object, "chunks", entry);
  entry.spec = {dtype_field(object), object.at("shape").shape()};
  for (TensorPart& chunk : entry.parts) {
    if (entry.spec.shape.rank() == 0 && chunk.box == Box::whole(Shape{1})) chunk.box = {};
    if (chunk.box.rank() != entry.spec.shape.rank() || chunk.part.spec.dtype != entry.spec.dtype)
      object.corrupt("a chunk differs from its tensor in dtype or number of dimensions");
  }
}

Value read_primitive(const std::string& type, const Field& field) {
  const std::string& text = field.text();
  if (type == "str") return Value::string(text);
  if (type == "bool") {
    if (text != "True" && text != "False") field.refuse("\"True\" or \"False\"");
    return Value::boolean(text == "True");
  }
  if (type == "int") {
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error == std::errc() && end == text.data() + text.size()) return Value::integer(number);
    const std::string_view digits = std::string_view(text).substr(text.starts_with('-') ? 1 : 0);
    if (error != std::errc::result_out_of_range || !is_decimal(digits))
      field.refuse("the digits of an integer");
    return Value::big_integer(text);
  }
  const std::optional<std::string> bytes = decode_base64(text);
  if (!bytes) field.refuse("base64");
  if (type == "bytes") return Value::bytes(*bytes);
  if (bytes->size() != sizeof(double)) field.refuse("base64 of 8 bytes");
  return Value::real(load_le<double>(as_bytes(*bytes).data()));
}

std::vector<Value> read_keys(const Field& object) {
  std::vector<Value> keys;
  for (const Value& key : object.at("keys").list()) {
    if (key.kind() == Value::Kind::kBool)  // a bool is an int to Python; its path says "True"
      keys.push_back(Value::string(key.as_bool() ? "True" : "False"));
    else if (key.is_string() || key.is_int())
      keys.push_back(key);
    else
      object.corrupt("a key is neither text nor an integer");
  }
  return keys;
}

void read_body(const Field& object, Entry& entry) {
  const std::string type = object.at("type").text();
  entry.replicated = flag_or_false(object, "replicated");
  using Kind = Entry::Kind;
  if (type == "dict" || type == "OrderedDict") {
    entry.kind = type == "dict" ? Kind::kDict : Kind::kOrderedDict;
    entry.keys = read_keys(object);
  } else if (type == "list") {
    entry.kind = Kind::kList;
  } else if (type == "Tensor") {
    entry.kind = Kind::kTensor;
    entry.parts.push_back({{}, read_part(object)});
    entry.spec = entry.parts[0].part.spec;
    entry.parts[0].box = Box::whole(entry.spec.shape);
  } else if (type == "ChunkedTensor") {
    entry.kind = Kind::kTensor;
    read_chunked(object, entry);
  } else if (type == "ShardedTensor" || type == "DTensor") {
    entry.kind = Kind::kSharded;
    read_shards(object, "shards", entry);
  } else if (type == "object") {
    entry.kind = Kind::kObject;
    entry.location = object.at("location").text();
    entry.class_name = object.at("obj_type").text();
    if (serializer_field(object) != Serializer::kTorchSave)
      object.corrupt("an object is stored by another serializer than torch_save");
  } else if (type == "int" || type == "str" || type == "bool" || type == "bytes" ||
             type == "float") {
    entry.primitive = read_primitive(type, object.at("serialized_value"));
  } else {
    fail(Code::kUnsupported, fmt::format("entries of type \"{}\" are not known", printable(type)));
  }
}

/// "3/optim/state": rank 3, "optim/state".
void split_rank(const std::string& key, std::int64_t world_size, Entry& entry) {
  const std::size_t slash = key.find('/');
  const std::string_view rank = std::string_view(key).substr(0, slash);
  const auto [end, error] = std::from_chars(rank.data(), rank.data() + rank.size(), entry.rank);
  if (slash == std::string::npos || !is_decimal(rank) || error != std::errc() ||
      end != rank.data() + rank.size() || slash + 1 == key.size())
    fail(Code::kCorrupt, "its path does not start with a rank");
  if (entry.rank >= world_size)
    fail(Code::kCorrupt, fmt::format("rank {} of a world of {}", entry.rank, world_size));
  entry.path = key.substr(slash + 1);
}

}  // namespace

Metadata parse_metadata(ByteView text) {
  Metadata out;
  const std::string_view chars = as_text(text);
  const std::size_t first = chars.find_first_not_of(" \t\r\n");
  out.yaml = first == std::string_view::npos || chars[first] != '{';
  JsonLimits limits;
  limits.max_values = text.size();
  const Value parsed = out.yaml ? parse_yaml(chars) : parse_json(text, limits);
  const Field root(parsed);
  out.version = root.at("version").text();
  const Field world_size = root.at("world_size");
  out.world_size = world_size.integer();
  if (out.world_size < 1 || out.world_size > kMaxWorldSize) world_size.refuse("a number of ranks");
  const Field manifest = root.at("manifest");
  for (const auto& [key, object] : manifest.dict()) {
    const std::string name = key.is_string() ? key.as_string() : std::string("?");
    in_tensor(name, [&] {
      Entry entry;
      split_rank(name, out.world_size, entry);
      read_body(Field(object), entry);
      out.entries.push_back(std::move(entry));
    });
  }
  return out;
}

namespace {
int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}
}  // namespace

std::string unescape(std::string_view item) {
  std::string out;
  for (std::size_t i = 0; i < item.size(); ++i) {
    const bool escaped = item[i] == '%' && i + 2 < item.size() && hex_digit(item[i + 1]) >= 0 &&
                         hex_digit(item[i + 2]) >= 0;
    if (!escaped) {
      out += item[i];
      continue;
    }
    out += static_cast<char>(hex_digit(item[i + 1]) * 16 + hex_digit(item[i + 2]));
    i += 2;
  }
  return out;
}

std::string escape(std::string_view key) {
  std::string out;
  for (const char c : key) {
    if (c == '%')
      out += "%25";
    else if (c == '/')
      out += "%2F";
    else
      out += c;
  }
  return out;
}

}  // namespace tessera::snapshot
