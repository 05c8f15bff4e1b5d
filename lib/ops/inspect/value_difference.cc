#include "lib/ops/inspect/value_difference.h"

#include <fmt/format.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "lib/encoding/numpy_json.h"
#include "lib/state/key_text.h"

namespace tessera {
namespace {

using Kind = Value::Kind;
using Found = std::optional<ValueDifference>;

bool is_word(const std::string& text) {
  return !text.empty() && std::ranges::all_of(text, [](unsigned char c) {
    return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  });
}

std::string step(const Value& key) {
  if (key.is_string() && is_word(key.as_string())) return "." + key.as_string();
  return fmt::format(
      "[{}]", key.is_string() ? fmt::format("'{}'", printable(key.as_string())) : key_text(key));
}

bool equal_numbers(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

class Walk {
 public:
  Walk(ValueDigester& a, ValueDigester& b, bool by_number) : a_(a), b_(b), by_number_(by_number) {}

  Found compare(const Value& a, const Value& b, const std::string& path) {
    if (a_.text(a) == b_.text(b)) return std::nullopt;
    if (a.kind() != b.kind()) return here(a, b, path);
    // A pair that was met has been reported, or differs by its numbers alone.
    if (a.node_id() != nullptr && !met_.emplace(a.node_id(), b.node_id()).second)
      return std::nullopt;
    switch (a.kind()) {
      case Kind::kFloat:
        return numbers(equal_numbers(a.as_real(), b.as_real()), a, b, path);
      case Kind::kComplex:
        return numbers(equal_numbers(a.as_complex().first, b.as_complex().first) &&
                           equal_numbers(a.as_complex().second, b.as_complex().second),
                       a, b, path);
      case Kind::kList:
      case Kind::kTuple:
        if (a.as_list().size() != b.as_list().size()) return here(a, b, path);
        return settled(items(a.as_list(), b.as_list(), path), a, b, path);
      case Kind::kOpaque:
        if (prints(a) && prints(b)) return here(a, b, path);
        return settled(objects(a.as_opaque(), b.as_opaque(), path), a, b, path);
      default:
        if (!a.is_dict()) return here(a, b, path);
        return settled(dicts(a, b, path), a, b, path);
    }
  }

 private:
  /// An array that is shown as its numbers: its parts would be its bytes.
  static bool prints(const Value& value) {
    const auto array = plain_array(value.as_opaque());
    return array && array->prints;
  }
  static Found here(const Value& a, const Value& b, const std::string& path) {
    return ValueDifference{path, a, b};
  }
  Found numbers(bool equal, const Value& a, const Value& b, const std::string& path) const {
    if (by_number_ && equal) return std::nullopt;
    return here(a, b, path);
  }
  /// Texts differ and no part does: by numbers that compare equal.
  Found settled(Found inside, const Value& a, const Value& b, const std::string& path) const {
    if (inside || by_number_) return inside;
    return here(a, b, path);
  }

  Found items(const ValueList& a, const ValueList& b, const std::string& path) {
    for (std::size_t i = 0; i < a.size(); ++i)
      if (auto found = compare(a[i], b[i], fmt::format("{}[{}]", path, i))) return found;
    return std::nullopt;
  }

  Found dicts(const Value& a, const Value& b, const std::string& path) {
    const bool factory = a.kind() == Kind::kDefaultDict;
    if (auto found = compare(a.attributes(), b.attributes(),
                             path + (factory ? ".default_factory" : ".__dict__")))
      return found;
    return pairs(a.as_dict(), b.as_dict(), a.kind() == Kind::kOrderedDict, path);
  }

  Found pairs(const ValueDict& a, const ValueDict& b, bool ordered, const std::string& path) {
    std::map<std::string, std::size_t> there;
    for (std::size_t i = 0; i < b.size(); ++i) there.emplace(b_.text(b[i].first), i);
    bool same_order = true;
    for (std::size_t i = 0; i < a.size(); ++i) {
      const auto& [key, value] = a[i];
      const auto place = there.find(a_.text(key));
      if (place == there.end()) return ValueDifference{path + step(key), value, std::nullopt};
      same_order = same_order && place->second == i;
      if (auto found = compare(value, b[place->second].second, path + step(key))) return found;
      there.erase(place);
    }
    if (!there.empty()) {
      const auto& [key, value] = b[there.begin()->second];
      return ValueDifference{path + step(key), std::nullopt, value};
    }
    if (same_order || !ordered) return std::nullopt;
    return ValueDifference{path, Value::dict(a), Value::dict(b)};
  }

  Found objects(const OpaqueObject& a, const OpaqueObject& b, const std::string& path) {
    using How = OpaqueObject::How;
    const bool same = a.how == b.how && a.global() == b.global() && a.has_state == b.has_state &&
                      a.how != How::kExtension && a.items.size() == b.items.size();
    if (!same) return ValueDifference{path, Value::opaque(a), Value::opaque(b)};
    const std::pair<const char*, std::pair<const Value*, const Value*>> parts[] = {
        {".arguments", {&a.arguments, &b.arguments}},
        {".keywords", {&a.keyword_arguments, &b.keyword_arguments}},
        {".state", {&a.state, &b.state}}};
    for (const auto& [name, sides] : parts)
      if (auto found = compare(*sides.first, *sides.second, path + name)) return found;
    if (auto found = items(a.items, b.items, path)) return found;
    return pairs(a.dict_items, b.dict_items, true, path);
  }

  ValueDigester& a_;
  ValueDigester& b_;
  bool by_number_;
  std::set<std::pair<const void*, const void*>> met_;
};

}  // namespace

std::optional<ValueDifference> first_difference(DigestedValue a, DigestedValue b, bool by_number) {
  return Walk(a.digester, b.digester, by_number).compare(a.value, b.value, "");
}

}  // namespace tessera
