#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/encoding/pickle_globals.h>
#include <tessera/encoding/tagged_json.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/encoding/json_tag.h"

namespace tessera {
namespace {

using Kind = Value::Kind;

constexpr auto kUsualNan = std::bit_cast<std::uint64_t>(std::numeric_limits<double>::quiet_NaN());
constexpr std::string_view kBuiltins = "builtins.";

bool is_plain_key(const Value& key) {
  if (!key.is_string()) return false;
  const std::string& text = key.as_string();
  return !text.starts_with("__") && text.find('\0') == std::string::npos && is_valid_utf8(text);
}

class TagEncoder {
 public:
  TagEncoder(const std::function<std::string(std::uint32_t)>& tensor_name, ValueBudget& budget)
      : tensor_name_(tensor_name), budget_(budget) {}

  Value encode(const Value& v) {
    budget_.spend();
    switch (v.kind()) {
      case Kind::kNone:
      case Kind::kBool:
        return v;
      case Kind::kInt:
        return integer(v.as_int());
      case Kind::kBigInt:
        return json_tag("__int__", v_text(v));
      case Kind::kFloat:
        return real(v.as_real());
      case Kind::kComplex:
        return json_tag("__complex__",
                        Value::list({real(v.as_complex().first), real(v.as_complex().second)}));
      case Kind::kString:
        return text(v);
      case Kind::kBytes:
        return hex("__bytes_hex__", v.as_string());
      case Kind::kByteArray:
        return hex("__bytearray_hex__", v.as_string());
      case Kind::kBytesIo:
        return hex("__bytesio_hex__", v.as_string());
      case Kind::kList:
        return list(v.as_list());
      case Kind::kTuple:
        return json_tag("__tuple__", list(v.as_list()));
      case Kind::kSet:
        return json_tag("__set__", list(v.as_list()));
      case Kind::kFrozenSet:
        return json_tag("__frozenset__", list(v.as_list()));
      case Kind::kSize: {
        ValueList extents;
        for (const std::int64_t extent : v.as_size()) extents.push_back(integer(extent));
        return json_tag("__size__", Value::list(std::move(extents)));
      }
      case Kind::kDict:
        return dict(v.as_dict());
      case Kind::kOrderedDict: {
        return Value::dict({{Value::string("__ordered_dict__"), pairs(v.as_dict())},
                            {Value::string("attributes"), encode(v.attributes())}});
      }
      case Kind::kCounter:
        return json_tag("__counter__", pairs(v.as_dict()));
      case Kind::kDefaultDict:
        return Value::dict({{Value::string("__default_dict__"), pairs(v.as_dict())},
                            {Value::string("factory"), factory(v.attributes())}});
      case Kind::kDType:
        return json_tag("__dtype__", Value::string(std::string(torch_name(v.as_dtype()))));
      case Kind::kTensor:
        return json_tag("__tensor__", Value::string(tensor_name_(v.tensor_index())));
      case Kind::kOpaque:
        fail(Code::kUnsupported,
             fmt::format("an object of class {} has no JSON form", v.as_opaque().global()),
             "drop opaque objects, or write a pickle format (torch-save, torch-dcp)");
      case Kind::kBackReference:  // only objects are in cycles
        fail(Code::kUnsupported, "an object that holds itself has no JSON form");
    }
    TESSERA_CHECK(false);
  }

 private:
  static Value v_text(const Value& v) { return Value::string(v.as_string()); }
  static Value integer(std::int64_t v) {
    constexpr std::int64_t kExact = std::int64_t{1} << 53;
    if (v >= -kExact && v <= kExact) return Value::integer(v);
    return json_tag("__int__", Value::string(fmt::format("{}", v)));
  }
  static Value real(double v) {
    if (std::isfinite(v)) return Value::real(v);
    if (!std::isnan(v)) return json_tag("__float__", Value::string(v > 0 ? "inf" : "-inf"));
    const auto payload = std::bit_cast<std::uint64_t>(v);
    return json_tag(
        "__float__",
        Value::string(payload == kUsualNan ? "nan" : fmt::format("nan:{:016x}", payload)));
  }
  Value text(const Value& v) {
    return is_valid_utf8(v.as_string()) ? v : hex("__text_hex__", v.as_string());
  }
  Value hex(const char* name, const std::string& bytes) {
    budget_.spend(bytes.size() / 16);  // a shared node is written once per use
    return json_tag(name, Value::string(hex_of(bytes)));
  }
  Value list(const ValueList& items) {
    ValueList out;
    out.reserve(items.size());
    for (const Value& item : items) out.push_back(encode(item));
    return Value::list(std::move(out));
  }
  Value pairs(const ValueDict& entries) {
    ValueList out;
    for (const auto& [key, value] : entries)
      out.push_back(Value::list({encode(key), encode(value)}));
    return Value::list(std::move(out));
  }
  Value factory(const Value& made_by) {
    if (!is_plain_factory(made_by)) return encode(made_by);  // refused by its class
    return made_by.is_none() ? made_by : Value::string(made_by.as_opaque().global());
  }
  Value dict(const ValueDict& entries) {
    const bool plain = std::all_of(entries.begin(), entries.end(),
                                   [](const auto& e) { return is_plain_key(e.first); });
    if (!plain) return json_tag("__dict__", pairs(entries));
    ValueDict out;
    for (const auto& [key, value] : entries) out.emplace_back(key, encode(value));
    return Value::dict(std::move(out));
  }

  const std::function<std::string(std::uint32_t)>& tensor_name_;
  ValueBudget& budget_;
};

[[noreturn]] void malformed_tag(std::string_view tag_name) {
  fail(Code::kCorrupt, fmt::format("tagged JSON: malformed \"{:.60}\"", tag_name));
}

std::string from_hex(const std::string& digits, std::string_view tag_name) {
  const auto nibble = [&](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    malformed_tag(tag_name);
  };
  if (digits.size() % 2 != 0) malformed_tag(tag_name);
  std::string out;
  for (std::size_t i = 0; i < digits.size(); i += 2)
    out += static_cast<char>(nibble(digits[i]) << 4 | nibble(digits[i + 1]));
  return out;
}

Value decimal(const std::string& digits) {
  const std::string_view unsigned_part =
      std::string_view(digits).substr(digits.starts_with('-') ? 1 : 0);
  if (!is_decimal(unsigned_part)) malformed_tag("__int__");
  std::int64_t small = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), small);
  if (error == std::errc() && end == digits.data() + digits.size()) return Value::integer(small);
  return Value::big_integer(digits);
}

class TagDecoder {
 public:
  explicit TagDecoder(const std::function<std::uint32_t(const std::string&)>& tensor_index)
      : tensor_index_(tensor_index) {}

  Value decode(const Value& json, int depth) {
    if (depth > kMaxValueDepth)
      fail(Code::kCorrupt,
           fmt::format("tagged JSON: nested deeper than {} levels", kMaxValueDepth));
    if (json.kind() == Kind::kList) return Value::list(list(json, depth, "list"));
    if (!json.is_dict()) return json;
    const ValueDict& entries = json.as_dict();
    if (!entries.empty() && entries[0].first.as_string().starts_with("__"))
      return tagged(entries[0].first.as_string(), entries, depth);
    ValueDict out;
    for (const auto& [key, value] : entries) {
      if (key.as_string().starts_with("__")) malformed_tag(key.as_string());
      out.emplace_back(key, decode(value, depth + 1));
    }
    return Value::dict(std::move(out));
  }

 private:
  Value tagged(const std::string& name, const ValueDict& entries, int depth) {
    const Value& inner = entries[0].second;
    if (name == "__ordered_dict__") {
      if (entries.size() != 2 || entries[1].first.as_string() != "attributes") malformed_tag(name);
      return Value::ordered_dict(pairs(inner, depth, name), decode(entries[1].second, depth + 1));
    }
    if (name == "__default_dict__") {
      if (entries.size() != 2 || entries[1].first.as_string() != "factory") malformed_tag(name);
      return Value::default_dict(pairs(inner, depth, name), factory(entries[1].second));
    }
    if (entries.size() != 1) malformed_tag(name);
    if (name == "__counter__") return Value::counter(pairs(inner, depth, name));
    if (name == "__tuple__") return Value::list(list(inner, depth, name), Kind::kTuple);
    if (name == "__set__") return Value::list(list(inner, depth, name), Kind::kSet);
    if (name == "__frozenset__") return Value::list(list(inner, depth, name), Kind::kFrozenSet);
    if (name == "__dict__") return Value::dict(pairs(inner, depth, name));
    if (name == "__size__") return size(inner, depth);
    if (name == "__complex__") return complex(inner, depth);
    if (!inner.is_string()) malformed_tag(name);
    return from_text(name, inner.as_string());
  }
  Value from_text(const std::string& name, const std::string& text) {
    if (name == "__int__") return decimal(text);
    if (name == "__float__") return Value::real(special_float(text));
    if (name == "__text_hex__") return Value::string(from_hex(text, name));
    if (name == "__bytes_hex__") return Value::bytes(from_hex(text, name));
    if (name == "__bytearray_hex__") return Value::bytes(from_hex(text, name), Kind::kByteArray);
    if (name == "__bytesio_hex__") return Value::bytes(from_hex(text, name), Kind::kBytesIo);
    if (name == "__tensor__") return Value::tensor(tensor_index_(text));
    if (name == "__dtype__")
      if (const auto dtype = dtype_from_torch_name(text)) return Value::dtype(*dtype);
    malformed_tag(name);
  }
  static double special_float(const std::string& text) {
    if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
    if (text == "inf") return std::numeric_limits<double>::infinity();
    if (text == "-inf") return -std::numeric_limits<double>::infinity();
    constexpr std::size_t kPayload = 4;  // behind "nan:"
    std::uint64_t payload = 0;
    if (!text.starts_with("nan:")) malformed_tag("__float__");
    const char* end = text.data() + text.size();
    const auto read = std::from_chars(text.data() + kPayload, end, payload, 16);
    const double nan = std::bit_cast<double>(payload);
    if (read.ec != std::errc() || read.ptr != end || !std::isnan(nan)) malformed_tag("__float__");
    return nan;
  }
  static Value factory(const Value& json) {
    if (json.is_none()) return json;
    if (!json.is_string() || !json.as_string().starts_with(kBuiltins))
      malformed_tag("__default_dict__");
    OpaqueObject made_by;
    made_by.module = kBuiltins.substr(0, kBuiltins.size() - 1);
    made_by.name = json.as_string().substr(kBuiltins.size());
    if (classify_global(made_by.module, made_by.name) != GlobalUse::Verdict::kKnown)
      malformed_tag("__default_dict__");
    return Value::opaque(std::move(made_by));
  }
  ValueList list(const Value& json, int depth, std::string_view name) {
    if (json.kind() != Kind::kList) malformed_tag(name);
    ValueList out;
    for (const Value& item : json.as_list()) out.push_back(decode(item, depth + 1));
    return out;
  }
  ValueDict pairs(const Value& json, int depth, std::string_view name) {
    if (json.kind() != Kind::kList) malformed_tag(name);
    ValueDict out;
    for (const Value& pair : json.as_list()) {
      if (pair.kind() != Kind::kList || pair.as_list().size() != 2) malformed_tag(name);
      out.emplace_back(decode(pair.as_list()[0], depth + 1), decode(pair.as_list()[1], depth + 1));
    }
    return out;
  }
  Value size(const Value& json, int depth) {
    std::vector<std::int64_t> extents;
    for (const Value& extent : list(json, depth, "__size__")) {
      if (!extent.is_int()) malformed_tag("__size__");
      extents.push_back(extent.as_int());
    }
    return Value::size(std::move(extents));
  }
  Value complex(const Value& json, int depth) {
    const ValueList parts = list(json, depth, "__complex__");
    if (parts.size() != 2 || !parts[0].is_number() || !parts[1].is_number())
      malformed_tag("__complex__");
    return Value::complex(parts[0].as_real(), parts[1].as_real());
  }

  const std::function<std::uint32_t(const std::string&)>& tensor_index_;
};

}  // namespace

bool is_plain_factory(const Value& factory) {
  if (factory.kind() != Kind::kOpaque) return factory.is_none();
  const OpaqueObject& global = factory.as_opaque();
  return global.how == OpaqueObject::How::kGlobal && global.module == "builtins" &&
         classify_global(global.module, global.name) == GlobalUse::Verdict::kKnown;
}

Value to_tagged_json(const Value& value,
                     const std::function<std::string(std::uint32_t index)>& tensor_name,
                     ValueBudget& budget) {
  return TagEncoder(tensor_name, budget).encode(value);
}

Value from_tagged_json(const Value& json,
                       const std::function<std::uint32_t(const std::string& name)>& tensor_index) {
  return TagDecoder(tensor_index).decode(json, 0);
}

}  // namespace tessera
