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

namespace tessera::snapshot {
namespace {

constexpr std::int64_t kMaxWorldSize = 1 << 20;

[[noreturn]] void corrupt(std::string_view what) { fail(Code::kCorrupt, std::string(what)); }

const Value& field(const Value& object, std::string_view name) {
  if (const Value* value = object.find(name)) return *value;
  corrupt(fmt::format("the field \"{}\" is missing", name));
}
std::string text_field(const Value& object, std::string_view name) {
  const Value& value = field(object, name);
  if (!value.is_string()) corrupt(fmt::format("the field \"{}\" is no text", name));
  return value.as_string();
}
bool flag_field(const Value& object, std::string_view name) {  // absent in the oldest snapshots
  const Value* value = object.find(name);
  if (value == nullptr || value->is_none()) return false;
  if (value->kind() != Value::Kind::kBool) corrupt(fmt::format("\"{}\" is no truth value", name));
  return value->as_bool();
}
const ValueList& list_field(const Value& object, std::string_view name) {
  const Value& value = field(object, name);
  if (value.kind() != Value::Kind::kList) corrupt(fmt::format("the field \"{}\" is no list", name));
  return value.as_list();
}
std::vector<std::int64_t> numbers_field(const Value& object, std::string_view name) {
  std::vector<std::int64_t> out;
  for (const Value& item : list_field(object, name)) {
    if (!item.is_int()) corrupt(fmt::format("the field \"{}\" does not hold integers", name));
    if (item.as_int() < 0) corrupt(fmt::format("the field \"{}\" holds {}", name, item.as_int()));
    out.push_back(item.as_int());
  }
  return out;
}

DType dtype_field(const Value& object) {
  const std::string name = text_field(object, "dtype");
  constexpr std::string_view kPrefix = "torch.";
  if (name.starts_with(kPrefix))
    if (const auto dtype = dtype_from_torch_name(std::string_view(name).substr(kPrefix.size())))
      return *dtype;
  corrupt(fmt::format("dtype \"{}\" is not known", printable(name)));
}

Serializer serializer_field(const Value& object) {
  const std::string name = text_field(object, "serializer");
  if (name == "buffer_protocol") return Serializer::kBuffer;
  if (name == "torch_save") return Serializer::kTorchSave;
  fail(Code::kUnsupported, fmt::format("the serializer \"{}\" is not known", printable(name)));
}

StoredPart read_part(const Value& object) {
  StoredPart part;
  part.location = text_field(object, "location");
  part.serializer = serializer_field(object);
  part.spec = {dtype_field(object), Shape::checked(numbers_field(object, "shape"))};
  const Value* range = object.find("byte_range");
  if (range != nullptr && !range->is_none()) {
    const auto ends = numbers_field(object, "byte_range");
    if (ends.size() != 2 || ends[0] > ends[1]) corrupt("\"byte_range\" is no range");
    part.range.emplace(ends[0], ends[1]);
  }
  return part;
}

TensorPart read_shard(const Value& object) {
  TensorPart out;
  const auto sizes = numbers_field(object, "sizes");
  out.box = {numbers_field(object, "offsets"), Shape::checked(sizes)};
  out.part = read_part(field(object, "tensor"));
  if (out.box.origin.size() != sizes.size()) corrupt("offsets and sizes differ in length");
  for (int d = 0; d < out.box.rank(); ++d)
    if (!checked_add(out.box.begin(d), out.box.shape[d])) corrupt("offset + size overflows");
  if (out.part.spec.shape.numel() != out.box.numel())
    corrupt(fmt::format("a shard of sizes {} is stored as {}", out.box.shape.to_string(),
                        out.part.spec.to_string()));
  return out;
}

/// Shards of one tensor agree in rank and dtype; `spec` takes the smallest shape that holds them.
void read_shards(const Value& object, std::string_view name, Entry& entry) {
  for (const Value& item : list_field(object, name)) {
    TensorPart shard = read_shard(item);
    const Shape& shape = shard.box.shape;
    if (entry.parts.empty()) {
      entry.spec = {shard.part.spec.dtype, shape};
    } else if (entry.spec.shape.rank() != shape.rank() ||
               entry.spec.dtype != shard.part.spec.dtype) {
      corrupt("its shards differ in dtype or number of dimensions");
    }
    for (int d = 0; d < shape.rank(); ++d)
      entry.spec.shape[d] = std::max(entry.spec.shape[d], shard.box.end(d));
    entry.parts.push_back(std::move(shard));
  }
  if (!entry.parts.empty()) Shape::checked(entry.spec.shape.extents());
}

/// A scalar was cut as if it had one dimension of one element.
void read_chunked(const Value& object, Entry& entry) {
  read_shards(object, "chunks", entry);
  entry.spec = {dtype_field(object), Shape::checked(numbers_field(object, "shape"))};
  for (TensorPart& chunk : entry.parts) {
    if (entry.spec.shape.rank() == 0 && chunk.box == Box::whole(Shape{1})) chunk.box = {};
    if (chunk.box.rank() != entry.spec.shape.rank() || chunk.part.spec.dtype != entry.spec.dtype)
      corrupt("a chunk differs from its tensor in dtype or number of dimensions");
  }
}

Value read_primitive(const std::string& type, const std::string& text) {
  if (type == "str") return Value::string(text);
  if (type == "bool") {
    if (text != "True" && text != "False") corrupt("a bool is neither True nor False");
    return Value::boolean(text == "True");
  }
  if (type == "int") {
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error == std::errc() && end == text.data() + text.size()) return Value::integer(number);
    const std::string_view digits = std::string_view(text).substr(text.starts_with('-') ? 1 : 0);
    if (error != std::errc::result_out_of_range || !is_decimal_text(digits))
      corrupt(fmt::format("\"{}\" is no integer", printable(text)));
    return Value::big_integer(text);
  }
  const std::optional<std::string> bytes = decode_base64(text);
  if (!bytes) corrupt("the value is no base64");
  if (type == "bytes") return Value::bytes(*bytes);
  if (bytes->size() != sizeof(double)) corrupt("a float does not have 8 bytes");
  return Value::real(load_le<double>(as_bytes(*bytes).data()));
}

std::vector<Value> read_keys(const Value& object) {
  std::vector<Value> keys;
  for (const Value& key : list_field(object, "keys")) {
    if (key.kind() == Value::Kind::kBool)  // a bool is an int to Python; its path says "True"
      keys.push_back(Value::string(key.as_bool() ? "True" : "False"));
    else if (key.is_string() || key.is_int())
      keys.push_back(key);
    else
      corrupt("a key is neither text nor an integer");
  }
  return keys;
}

void read_body(const Value& object, Entry& entry) {
  const std::string type = text_field(object, "type");
  entry.replicated = flag_field(object, "replicated");
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
    entry.location = text_field(object, "location");
    entry.class_name = text_field(object, "obj_type");
    if (serializer_field(object) != Serializer::kTorchSave)
      corrupt("an object is stored by another serializer than torch_save");
  } else if (type == "int" || type == "str" || type == "bool" || type == "bytes" ||
             type == "float") {
    entry.primitive = read_primitive(type, text_field(object, "serialized_value"));
  } else {
    fail(Code::kUnsupported, fmt::format("entries of type \"{}\" are not known", printable(type)));
  }
}

/// "3/optim/state": rank 3, "optim/state".
void split_rank(const std::string& key, std::int64_t world_size, Entry& entry) {
  const std::size_t slash = key.find('/');
  const std::string_view rank = std::string_view(key).substr(0, slash);
  const auto [end, error] = std::from_chars(rank.data(), rank.data() + rank.size(), entry.rank);
  if (slash == std::string::npos || !is_decimal_text(rank) || error != std::errc() ||
      end != rank.data() + rank.size() || slash + 1 == key.size())
    corrupt("its path does not start with a rank");
  if (entry.rank >= world_size)
    corrupt(fmt::format("rank {} of a world of {}", entry.rank, world_size));
  entry.path = key.substr(slash + 1);
}

}  // namespace

bool is_decimal_text(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

Metadata parse_metadata(ByteView text) {
  Metadata out;
  const std::string_view chars = as_text(text);
  const std::size_t first = chars.find_first_not_of(" \t\r\n");
  out.yaml = first == std::string_view::npos || chars[first] != '{';
  JsonLimits limits;
  limits.max_values = text.size();
  const Value root = out.yaml ? parse_yaml(chars) : parse_json(text, limits);
  out.version = text_field(root, "version");
  const Value& world_size = field(root, "world_size");
  if (!world_size.is_int() || world_size.as_int() < 1 || world_size.as_int() > kMaxWorldSize)
    corrupt("\"world_size\" is no number of ranks");
  out.world_size = world_size.as_int();
  const Value& manifest = field(root, "manifest");
  if (!manifest.is_dict()) corrupt("\"manifest\" is no mapping");
  for (const auto& [key, object] : manifest.as_dict()) {
    const std::string name = key.is_string() ? key.as_string() : std::string("?");
    in_tensor(name, [&] {
      Entry entry;
      split_rank(name, out.world_size, entry);
      if (!object.is_dict()) corrupt("its entry is no mapping");
      read_body(object, entry);
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
