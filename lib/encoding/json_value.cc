// to_json_value: a Python-like value in the tagged JSON form that `ls` prints.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/encoding/json.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "lib/encoding/json_tag.h"
#include "lib/encoding/numpy_json.h"
#include "lib/state/tensor_wrapper.h"

namespace tessera {
namespace {

/// repr(float) of a finite number: 17 digits at most, an exponent outside [1e-4, 1e16).
std::string python_float(double v) {
  std::array<char, 64> buffer;
  const double size = std::fabs(v);
  const bool fixed = size == 0 || (size >= 1e-4 && size < 1e16);
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), v,
                                 fixed ? std::chars_format::fixed : std::chars_format::scientific)
                       .ptr;
  std::string text(buffer.data(), end);
  if (fixed && text.find('.') == std::string::npos) text += ".0";
  return text;
}

std::string python_string(const std::string& v) {
  const bool single = v.find('\'') == std::string::npos || v.find('"') != std::string::npos;
  const char quote = single ? '\'' : '"';
  std::string out(1, quote);
  for (const char c : v) {
    if (c == quote || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == '\r') {
      out += "\\r";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  return out + quote;
}

/// Python's repr() of a JSON value: the order of a printed set.
std::string python_repr(const Value& v) {
  switch (v.kind()) {
    case Value::Kind::kNone:
      return "None";
    case Value::Kind::kBool:
      return v.as_bool() ? "True" : "False";
    case Value::Kind::kInt:
      return fmt::format("{}", v.as_int());
    case Value::Kind::kFloat:
      return python_float(v.as_real());
    case Value::Kind::kString:
      return python_string(v.as_string());
    case Value::Kind::kList: {
      std::string out = "[";
      for (const Value& item : v.as_list()) out += (out.size() > 1 ? ", " : "") + python_repr(item);
      return out + "]";
    }
    default: {
      std::string out = "{";
      for (const auto& [key, value] : v.as_dict())
        out += (out.size() > 1 ? ", " : "") + python_repr(key) + ": " + python_repr(value);
      return out + "}";
    }
  }
}

class Converter {
 public:
  Converter(const DescribeTensor& describe, ValueBudget& budget)
      : describe_(describe), budget_(budget) {}

  /// `tuples`: {"__tuple__": [...]} instead of a list; sets are ordered by that form.
  Value convert(const Value& v, bool tuples) {
    budget_.spend();
    switch (v.kind()) {
      case Value::Kind::kNone:
      case Value::Kind::kBool:
        return v;
      case Value::Kind::kString:
        spend_text(v);
        return v;
      case Value::Kind::kInt:
        return integer(v.as_int());
      case Value::Kind::kBigInt:
        spend_text(v);
        return json_tag("__int__", Value::string(v.as_string()));
      case Value::Kind::kFloat:
        return real(v.as_real());
      case Value::Kind::kComplex:
        return json_tag("__complex__",
                        Value::list({real(v.as_complex().first), real(v.as_complex().second)}));
      case Value::Kind::kBytes:
      case Value::Kind::kByteArray:
        return hex("__bytes_hex__", v);
      case Value::Kind::kBytesIo:
        return hex("__bytesio_hex__", v);
      case Value::Kind::kList:
        return list(v.as_list(), tuples);
      case Value::Kind::kTuple: {
        Value items = list(v.as_list(), tuples);
        return tuples ? json_tag("__tuple__", std::move(items)) : items;
      }
      case Value::Kind::kSet:
      case Value::Kind::kFrozenSet:
        return set(v.as_list(), tuples);
      case Value::Kind::kSize:
        return size(v.as_size());
      case Value::Kind::kDict:
      case Value::Kind::kOrderedDict:
      case Value::Kind::kDefaultDict:
      case Value::Kind::kCounter:
        return dict(v.as_dict(), tuples);
      case Value::Kind::kBackReference:
        // Only below an object, which prints as its class, or in an array of numpy's.
        return json_tag("__object__", Value::string("builtins.object"));
      case Value::Kind::kDType:
        return json_tag("__dtype__", Value::string(std::string(torch_name(v.as_dtype()))));
      case Value::Kind::kTensor:
        return json_tag("__tensor__", describe_(v.tensor_index()));
      case Value::Kind::kOpaque:
        if (const std::string name = wrapper_class(v); !name.empty()) return wrapper(name, v);
        return opaque(v, tuples);
    }
    TESSERA_CHECK(false);
  }

 private:
  static Value integer(std::int64_t v) {
    constexpr std::int64_t kExact = std::int64_t{1} << 53;
    if (v > -kExact && v < kExact) return Value::integer(v);
    return json_tag("__int__", Value::string(fmt::format("{}", v)));
  }
  static Value real(double v) {
    if (std::isfinite(v)) return Value::real(v);
    return json_tag("__float__", Value::string(std::isnan(v) ? "nan" : v > 0 ? "inf" : "-inf"));
  }
  /// Shared text and bytes are written once per use, too.
  void spend_text(const Value& v) { budget_.spend(v.as_string().size() / 16); }
  Value hex(const char* name, const Value& v) {
    spend_text(v);
    return json_tag(name, Value::string(hex_of(v.as_string())));
  }
  Value list(const ValueList& items, bool tuples) {
    if (items.empty()) return empty_list_;
    ValueList out;
    out.reserve(items.size());
    for (const Value& item : items) out.push_back(convert(item, tuples));
    return Value::list(std::move(out));
  }
  Value size(const std::vector<std::int64_t>& extents) {
    budget_.spend(extents.size());
    ValueList out;
    for (const std::int64_t extent : extents) out.push_back(integer(extent));
    return json_tag("__size__", Value::list(std::move(out)));
  }
  Value set(const ValueList& items, bool tuples) {
    std::vector<std::pair<std::string, Value>> sorted;
    for (const Value& item : items) {
      Value plain = convert(item, tuples);
      // The second conversion only where it could differ from the first.
      const bool nested =
          item.kind() == Value::Kind::kTuple || item.kind() == Value::Kind::kFrozenSet;
      std::string order = python_repr(nested && !tuples ? convert(item, true) : plain);
      sorted.emplace_back(std::move(order), std::move(plain));
    }
    std::stable_sort(sorted.begin(), sorted.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    ValueList out;
    for (auto& entry : sorted) out.push_back(std::move(entry.second));
    return json_tag("__set__", Value::list(std::move(out)));
  }
  Value dict(const ValueDict& entries, bool tuples) {
    if (entries.empty()) return empty_dict_;
    const bool plain = std::all_of(entries.begin(), entries.end(),
                                   [](const auto& e) { return e.first.is_string(); });
    if (plain) {
      ValueDict out;
      for (const auto& [key, value] : entries) {
        spend_text(key);
        out.emplace_back(key, convert(value, tuples));
      }
      return Value::dict(std::move(out));
    }
    ValueList pairs;
    for (const auto& [key, value] : entries)
      pairs.push_back(Value::list({convert(key, tuples), convert(value, tuples)}));
    return json_tag("__dict__", Value::list(std::move(pairs)));
  }
  Value opaque(const Value& v, bool tuples) {
    const auto element = [&](const Value& item) { return convert(item, tuples); };
    if (auto numpy = numpy_json(v.as_opaque(), element, budget_)) return *std::move(numpy);
    return json_tag("__object__", Value::string(object_class(v)));
  }
  /// A tensor of a subclass around several: its class, and what it is made of.
  Value wrapper(const std::string& class_name, const Value& v) {
    ValueDict out{{Value::string("__object__"), Value::string(class_name)}};
    ValueDict parts;
    for (const auto& [name, tensor] : wrapper_parts(v))
      parts.emplace_back(Value::string(name), convert(Value::tensor(tensor), false));
    if (!parts.empty()) out.emplace_back(Value::string("parts"), Value::dict(std::move(parts)));
    return Value::dict(std::move(out));
  }

  const DescribeTensor& describe_;
  ValueBudget& budget_;
  // There may be a million of them.
  const Value empty_list_ = Value::list({}), empty_dict_ = Value::dict({});
};

}  // namespace

Value to_json_value(const Value& value, const DescribeTensor& describe_tensor,
                    ValueBudget& budget) {
  return Converter(describe_tensor, budget).convert(value, false);
}

}  // namespace tessera
