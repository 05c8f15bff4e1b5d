#include "lib/state/key_text.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

namespace tessera {
namespace {

using Kind = Value::Kind;

constexpr std::size_t kMaxKeyText = 1 << 16;  // bytes; a key that prints longer names nothing

std::string real_text(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_not_of("-0123456789") == std::string::npos) text += ".0";
  return text;
}

std::string python_quoted(const std::string& text) {
  const char quote =
      text.find('\'') != std::string::npos && text.find('"') == std::string::npos ? '"' : '\'';
  std::string out(1, quote);
  for (const char c : text) {
    if (c == quote || c == '\\') out += '\\';
    out += c;
  }
  return printable(out) + quote;
}

std::string repr(const Value& value, int depth);

std::string joined(const ValueList& items, int depth) {
  std::string text;
  for (const Value& item : items) {
    if (!text.empty()) text += ", ";
    text += repr(item, depth + 1);
    if (text.size() > kMaxKeyText) fail(Code::kCorrupt, "a dict key prints to more than 64 KiB");
  }
  return text;
}

std::string repr(const Value& value, int depth) {
  if (depth > kMaxValueDepth) fail(Code::kCorrupt, "a dict key is nested too deep");
  switch (value.kind()) {
    case Kind::kNone:
      return "None";
    case Kind::kBool:
      return value.as_bool() ? "True" : "False";
    case Kind::kInt:
      return std::to_string(value.as_int());
    case Kind::kBigInt:
      return value.as_string();
    case Kind::kFloat:
      return real_text(value.as_real());
    case Kind::kComplex: {
      const auto [re, im] = value.as_complex();
      return fmt::format("({}{:+}j)", re, im);
    }
    case Kind::kString:
      return python_quoted(value.as_string());
    case Kind::kBytes:
      return "b" + python_quoted(value.as_string());
    case Kind::kByteArray:
      return "bytearray(b" + python_quoted(value.as_string()) + ")";
    case Kind::kBytesIo:
      return "<io.BytesIO>";
    case Kind::kList:
      return "[" + joined(value.as_list(), depth) + "]";
    case Kind::kTuple:
      return "(" + joined(value.as_list(), depth) + (value.as_list().size() == 1 ? ",)" : ")");
    case Kind::kSet:
      return "{" + joined(value.as_list(), depth) + "}";
    case Kind::kFrozenSet:
      return "frozenset({" + joined(value.as_list(), depth) + "})";
    case Kind::kSize: {
      std::string text;
      for (const std::int64_t extent : value.as_size())
        text += fmt::format("{}{}", text.empty() ? "" : ", ", extent);
      return "torch.Size([" + text + "])";
    }
    case Kind::kDict:
    case Kind::kOrderedDict:
    case Kind::kDefaultDict:
    case Kind::kCounter:
      return "<dict>";
    case Kind::kBackReference:
      return "<back reference>";
    case Kind::kDType:
      return fmt::format("torch.{}", torch_name(value.as_dtype()));
    case Kind::kTensor:
      return fmt::format("<tensor {}>", value.tensor_index());
    case Kind::kOpaque:
      return fmt::format("<{}>", value.as_opaque().global());
  }
  return {};
}

}  // namespace

std::string key_text(const Value& key) { return key.is_string() ? key.as_string() : repr(key, 0); }

}  // namespace tessera
