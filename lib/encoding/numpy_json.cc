#include "lib/encoding/numpy_json.h"

#include <fmt/format.h>
#include <tessera/base/bytes.h>
#include <tessera/base/checked.h>
#include <tessera/tensor/cast.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "lib/encoding/utf8.h"

namespace tessera {
namespace {

struct NumpyDType {
  char kind = 0;  // b i u f c S U O
  std::size_t item_bytes = 0;
  bool big_endian = false;
  std::string name;
};

bool is_numpy(const OpaqueObject& object, std::string_view last, std::string_view name) {
  const std::string_view module = object.module;
  return object.name == name && (module == fmt::format("numpy.core.{}", last) ||
                                 module == fmt::format("numpy._core.{}", last));
}

const ValueList* tuple_of(const Value& value, std::size_t at_least) {
  if (value.kind() != Value::Kind::kTuple || value.as_list().size() < at_least) return nullptr;
  return &value.as_list();
}

std::string dtype_name(char kind, std::size_t bytes, bool big_endian) {
  if (kind == 'S') return fmt::format("|S{}", bytes);
  if (kind == 'U') return fmt::format("{}U{}", big_endian ? '>' : '<', bytes / 4);
  if (kind == 'O') return "object";
  if (big_endian && bytes > 1) return fmt::format(">{}{}", kind, bytes);
  const std::string_view word = kind == 'b'   ? "bool"
                                : kind == 'i' ? "int"
                                : kind == 'u' ? "uint"
                                : kind == 'f' ? "float"
                                              : "complex";
  return kind == 'b' ? std::string(word) : fmt::format("{}{}", word, bytes * 8);
}

/// numpy.dtype('f4', align, copy) with state (version, byte order, subarray, names, fields, size,
/// alignment, flags).
std::optional<NumpyDType> read_dtype(const Value& value) {
  if (value.kind() != Value::Kind::kOpaque) return std::nullopt;
  const OpaqueObject& object = value.as_opaque();
  const ValueList* arguments = tuple_of(object.arguments, 1);
  if (object.global() != "numpy.dtype" || !arguments || !(*arguments)[0].is_string())
    return std::nullopt;
  const std::string& code = (*arguments)[0].as_string();
  NumpyDType out;
  if (const ValueList* state = tuple_of(object.state, 5)) {
    if (!(*state)[2].is_none() || !(*state)[3].is_none())
      return std::nullopt;  // subarray, structured
    out.big_endian = (*state)[1].is_string() && (*state)[1].as_string() == ">";
  }
  if (code.size() < 2 || code.size() > 10) return std::nullopt;
  out.kind = code[0];
  for (const char c : code.substr(1)) {
    if (c < '0' || c > '9') return std::nullopt;
    out.item_bytes = out.item_bytes * 10 + static_cast<std::size_t>(c - '0');
  }
  if (out.kind == 'U') out.item_bytes *= 4;
  const std::size_t n = out.item_bytes;
  const bool ok = out.kind == 'b'                      ? n == 1
                  : out.kind == 'i' || out.kind == 'u' ? n == 1 || n == 2 || n == 4 || n == 8
                  : out.kind == 'f'                    ? n == 2 || n == 4 || n == 8
                  : out.kind == 'c'                    ? n == 8 || n == 16
                                    : out.kind == 'S' || out.kind == 'U' || out.kind == 'O';
  if (!ok) return std::nullopt;
  out.name = dtype_name(out.kind, n, out.big_endian);
  return out;
}

double read_real(const std::byte* at, std::size_t bytes) {
  double out = 0;
  const DType type = bytes == 2 ? DType::kFloat16 : bytes == 4 ? DType::kFloat32 : DType::kFloat64;
  to_double(type, {at, bytes}, {&out, 1});
  return out;
}

Value read_element(const NumpyDType& type, const std::byte* at) {
  std::vector<std::byte> item(at, at + type.item_bytes);
  const std::size_t unit = type.kind == 'c'   ? type.item_bytes / 2
                           : type.kind == 'U' ? 4
                                              : type.item_bytes;
  if (type.big_endian && type.kind != 'S')
    for (std::size_t i = 0; i + unit <= item.size(); i += unit)
      std::reverse(item.begin() + static_cast<std::ptrdiff_t>(i),
                   item.begin() + static_cast<std::ptrdiff_t>(i + unit));
  const std::size_t n = type.item_bytes;
  switch (type.kind) {
    case 'b':
      return Value::boolean(item[0] != std::byte{0});
    case 'f':
      return Value::real(read_real(item.data(), n));
    case 'c':
      return Value::complex(read_real(item.data(), n / 2), read_real(item.data() + n / 2, n / 2));
    case 'S': {
      std::string text(as_text(item));
      return Value::bytes(text.substr(0, text.find_last_not_of('\0') + 1));
    }
    case 'U': {
      std::string text;
      std::size_t end = n / 4;
      while (end > 0 && load_le<std::uint32_t>(item.data() + 4 * (end - 1)) == 0) --end;
      for (std::size_t i = 0; i < end; ++i) {
        const auto point = load_le<std::uint32_t>(item.data() + 4 * i);
        append_utf8(text, point > 0x10FFFF ? 0xFFFD : point);
      }
      return Value::string(std::move(text));
    }
    default:
      break;
  }
  std::uint64_t raw = 0;
  for (std::size_t i = 0; i < n; ++i) raw |= static_cast<std::uint64_t>(item[i]) << (8 * i);
  if (type.kind == 'u')
    return raw > INT64_MAX ? Value::big_integer(fmt::format("{}", raw))
                           : Value::integer(static_cast<std::int64_t>(raw));
  const int shift = 64 - static_cast<int>(8 * n);
  return Value::integer(static_cast<std::int64_t>(raw << shift) >> shift);
}

/// Elements of an array in row-major order, as nested lists.
class ArrayReader {
 public:
  ArrayReader(std::vector<std::int64_t> shape, bool fortran,
              std::function<Value(std::size_t)> element)
      : shape_(std::move(shape)), strides_(shape_.size(), 1), element_(std::move(element)) {
    if (std::find(shape_.begin(), shape_.end(), 0) != shape_.end())
      return;  // no element is reached
    std::int64_t step = 1;
    for (std::size_t i = 0; i < shape_.size(); ++i) {
      const std::size_t d = fortran ? i : shape_.size() - 1 - i;
      strides_[d] = step;
      step *= shape_[d];
    }
  }
  Value read(std::size_t dim, std::int64_t offset, ValueBudget& budget) const {
    budget.spend();
    if (dim == shape_.size()) return element_(static_cast<std::size_t>(offset));
    ValueList items;
    for (std::int64_t i = 0; i < shape_[dim]; ++i)
      items.push_back(read(dim + 1, offset + i * strides_[dim], budget));
    return Value::list(std::move(items));
  }

 private:
  std::vector<std::int64_t> shape_;
  std::vector<std::int64_t> strides_;
  std::function<Value(std::size_t)> element_;
};

std::optional<std::vector<std::int64_t>> read_shape(const Value& value) {
  constexpr std::size_t kMostDims = 64;  // of numpy; each is a call of ArrayReader::read
  std::vector<std::int64_t> shape;
  if (value.kind() == Value::Kind::kSize) {
    shape = value.as_size();
  } else {
    const ValueList* items = tuple_of(value, 0);
    if (!items || items->size() > kMostDims) return std::nullopt;
    for (const Value& item : *items) {
      if (!item.is_int()) return std::nullopt;
      shape.push_back(item.as_int());
    }
  }
  const bool negative = std::any_of(shape.begin(), shape.end(), [](auto d) { return d < 0; });
  if (negative || shape.size() > kMostDims) return std::nullopt;
  return shape;
}

bool is_bytes(const Value& value) {
  return value.kind() == Value::Kind::kBytes || value.kind() == Value::Kind::kByteArray;
}

std::optional<NumpyArray> array_parts(const OpaqueObject& object) {
  if (is_numpy(object, "multiarray", "_reconstruct")) {
    const ValueList* state =
        tuple_of(object.state, 5);  // version, shape, dtype, fortran order, data
    if (!state || (*state)[3].kind() != Value::Kind::kBool) return std::nullopt;
    return NumpyArray{&(*state)[1], &(*state)[2], &(*state)[4], (*state)[3].as_bool()};
  }
  if (is_numpy(object, "numeric", "_frombuffer")) {
    const ValueList* arguments = tuple_of(object.arguments, 4);  // data, dtype, shape, order
    if (!arguments || !(*arguments)[3].is_string()) return std::nullopt;
    return NumpyArray{&(*arguments)[2], &(*arguments)[1], &(*arguments)[0],
                      (*arguments)[3].as_string() == "F"};
  }
  return std::nullopt;
}

Value tagged(const char* tag, Value value, const std::string& dtype) {
  return Value::dict(
      {{Value::string(tag), std::move(value)}, {Value::string("dtype"), Value::string(dtype)}});
}

std::optional<Value> array_json(const NumpyArray& parts,
                                const std::function<Value(const Value&)>& element,
                                ValueBudget& budget) {
  const auto shape = read_shape(*parts.shape);
  const auto type = read_dtype(*parts.dtype);
  if (!shape || !type) return std::nullopt;
  std::int64_t numel = 1;
  for (const std::int64_t extent : *shape) {
    const auto product = checked_mul(numel, extent);
    if (!product) return std::nullopt;
    numel = *product;
  }
  const bool objects = type->kind == 'O' && parts.data->kind() == Value::Kind::kList;
  if (!objects && (type->kind == 'O' || !is_bytes(*parts.data))) return std::nullopt;
  const std::size_t held = objects ? parts.data->as_list().size() : parts.data->as_string().size();
  const auto needed = checked_mul(numel, objects ? 1 : static_cast<std::int64_t>(type->item_bytes));
  if (!needed || static_cast<std::uint64_t>(*needed) != held) return std::nullopt;
  const ArrayReader reader(*shape, parts.fortran, [&](std::size_t i) {
    if (objects) return element(parts.data->as_list()[i]);
    return element(
        read_element(*type, as_bytes(parts.data->as_string()).data() + i * type->item_bytes));
  });
  return tagged("__ndarray__", reader.read(0, 0, budget), type->name);
}

std::optional<Value> scalar_json(const OpaqueObject& object,
                                 const std::function<Value(const Value&)>& element) {
  const ValueList* arguments = tuple_of(object.arguments, 2);
  if (!arguments || !is_bytes((*arguments)[1])) return std::nullopt;
  const auto type = read_dtype((*arguments)[0]);
  const std::string& data = (*arguments)[1].as_string();
  if (!type || type->kind == 'O' || data.size() != type->item_bytes) return std::nullopt;
  return tagged("__npscalar__", element(read_element(*type, as_bytes(data).data())), type->name);
}

}  // namespace

std::optional<NumpyArray> plain_array(const OpaqueObject& object) {
  auto parts = array_parts(object);
  if (!parts || !is_bytes(*parts->data)) return std::nullopt;
  parts->prints = read_dtype(*parts->dtype).has_value();
  // More of it than its parts say: items, keywords, or the state of a view.
  if (!object.items.empty() || !object.dict_items.empty()) return std::nullopt;
  if (object.name == "_frombuffer") return object.has_state ? std::nullopt : parts;
  const ValueList* made = tuple_of(object.arguments, 1);
  const bool plain = made && (*made)[0].kind() == Value::Kind::kOpaque &&
                     (*made)[0].as_opaque().how == OpaqueObject::How::kGlobal &&
                     (*made)[0].as_opaque().global() == "numpy.ndarray" &&
                     object.state.as_list().size() == 5;
  return plain ? parts : std::nullopt;
}

std::optional<Value> numpy_json(const OpaqueObject& object,
                                const std::function<Value(const Value&)>& element,
                                ValueBudget& budget) {
  if (is_numpy(object, "multiarray", "scalar")) return scalar_json(object, element);
  if (const auto parts = array_parts(object)) return array_json(*parts, element, budget);
  return std::nullopt;
}

}  // namespace tessera
