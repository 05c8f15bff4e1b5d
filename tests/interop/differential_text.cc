#include "tests/interop/differential_text.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>

namespace tessera::test {

std::string ValueText::checked(std::string text) {
  length_ += text.size();
  if (length_ > kMostText) throw TooLarge();
  return text;
}

std::string ValueText::real(double value) {
  if (value != value) return "nan";
  return fmt::format("{:016x}", std::bit_cast<std::uint64_t>(value));
}

std::string ValueText::bytes(char kind, const std::string& text) {
  std::string out = fmt::format("{}{}:", kind, text.size());
  for (const char c : text) out += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return out;
}

std::string ValueText::items(const ValueList& list, bool sorted) {
  std::vector<std::string> texts;
  for (const Value& item : list) texts.push_back(of(item));
  if (sorted) std::sort(texts.begin(), texts.end());
  return fmt::format("{}", fmt::join(texts, ","));
}

std::string ValueText::pairs(const ValueDict& dict) {
  std::vector<std::string> texts;
  for (const auto& [key, value] : dict) {
    std::string text = of(key) + ":";
    texts.push_back(text + of(value));
  }
  return fmt::format("{}", fmt::join(texts, ","));
}

std::string ValueText::of(const Value& value) {
  using Kind = Value::Kind;
  switch (value.kind()) {
    case Kind::kNone:
      return checked("N");
    case Kind::kBool:
      return checked(value.as_bool() ? "true" : "false");
    case Kind::kInt:
      return checked(fmt::format("i{}", value.as_int()));
    case Kind::kBigInt:
      return checked("i" + value.as_string());
    case Kind::kFloat:
      return checked("f" + real(value.as_real()));
    case Kind::kComplex:
      return checked("c" + real(value.as_complex().first) + real(value.as_complex().second));
    case Kind::kString:
      return checked(bytes('s', value.as_string()));
    case Kind::kBytes:
      return checked(bytes('b', value.as_string()));
    case Kind::kByteArray:
      return checked(bytes('y', value.as_string()));
    case Kind::kList:
      return checked("[" + items(value.as_list(), false) + "]");
    case Kind::kTuple:
      return checked("(" + items(value.as_list(), false) + ")");
    case Kind::kSet:
      return checked("set{" + items(value.as_list(), true) + "}");
    case Kind::kFrozenSet:
      return checked("frozenset{" + items(value.as_list(), true) + "}");
    case Kind::kSize:
      return checked(fmt::format("size({})", fmt::join(value.as_size(), ",")));
    case Kind::kOrderedDict: {
      std::string text = "O{" + pairs(value.as_dict()) + "}";
      const bool plain = value.attributes().is_none() || value.attributes().as_dict().empty();
      return checked(plain ? text : text + of(value.attributes()));
    }
    case Kind::kDType:
      return checked(fmt::format("torch.{}", torch_name(value.as_dtype())));
    case Kind::kTensor:
      return checked(tensor_(value.tensor_index()));
    case Kind::kOpaque:
    case Kind::kDefaultDict:
      return checked("object");
    case Kind::kBackReference:
      return checked(fmt::format("up {}", value.distance()));
    case Kind::kCounter:
      return checked("C{" + pairs(value.as_dict()) + "}");
    default:
      return checked("D{" + pairs(value.as_dict()) + "}");
  }
}

}  // namespace tessera::test
