#include "lib/state/python_keys.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <unordered_map>
#include <vector>

#include "lib/state/key_text.h"

namespace tessera {
namespace {

constexpr double kTwoTo63 = 9223372036854775808.0;

std::optional<std::int64_t> small_integer(double real) {
  if (std::trunc(real) != real || real < -kTwoTo63 || real >= kTwoTo63) return std::nullopt;
  return static_cast<std::int64_t>(real);
}

/// The integer that equals a number, where int64 holds it.
std::optional<std::int64_t> small_integer(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::kBool:
      return value.as_bool();
    case Value::Kind::kInt:
      return value.as_int();
    case Value::Kind::kFloat:
      return small_integer(value.as_real());
    case Value::Kind::kComplex:
      if (value.as_complex().second != 0) return std::nullopt;
      return small_integer(value.as_complex().first);
    default:
      return std::nullopt;
  }
}

/// A text per class of equal numbers.
std::string number_text(double real) {
  if (std::isnan(real)) return "nan";
  if (std::trunc(real) == real && !std::isinf(real)) return fmt::format("i{:.0f}", real + 0.0);
  return fmt::format("f{:x}", std::bit_cast<std::uint64_t>(real));
}

}  // namespace

struct PythonKeys::Rep {
  struct Class {
    std::uint32_t id = 0;
    bool has_nan = false;  // equal only to itself
  };
  struct Place {
    std::size_t place = 0;
    const void* node = nullptr;
  };

  Class of(const Value& value);
  Class intern(std::string text, bool has_nan);
  Class of_items(const Value& value);
  std::optional<Class> of_call(const OpaqueObject& object);

  std::unordered_map<std::string_view, std::size_t> strings;
  std::unordered_map<std::int64_t, std::size_t> integers;
  std::unordered_map<std::uint32_t, Place> others;
  std::unordered_map<std::string, std::uint32_t> classes;
  std::unordered_map<const void*, Class> nodes;  // compound keys met before
};

PythonKeys::Rep::Class PythonKeys::Rep::intern(std::string text, bool has_nan) {
  const auto id = static_cast<std::uint32_t>(classes.size());
  return {classes.try_emplace(std::move(text), id).first->second, has_nan};
}

/// Items are named by their classes, so that a key that holds one tuple many times stays short.
PythonKeys::Rep::Class PythonKeys::Rep::of_items(const Value& value) {
  const bool is_set = value.kind() == Value::Kind::kFrozenSet;
  std::vector<std::uint32_t> ids;
  bool has_nan = false;
  for (const Value& item : value.as_list()) {
    const Class c = of(item);
    ids.push_back(c.id);
    has_nan |= c.has_nan;
  }
  if (is_set) {
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  }
  return intern(fmt::format("{}{}", is_set ? 'z' : 't', fmt::join(ids, ",")), has_nan);
}

/// torch.device("cuda", 1) and torch.device("cuda:1") are equal, and every layout is there once.
std::optional<PythonKeys::Rep::Class> PythonKeys::Rep::of_call(const OpaqueObject& object) {
  const bool device = object.module == "torch" && object.name == "device";
  const bool layout = object.module == "torch.serialization" && object.name == "_get_layout";
  if (object.how != OpaqueObject::How::kReduce || (!device && !layout)) return std::nullopt;
  if (object.arguments.kind() != Value::Kind::kTuple) return std::nullopt;
  std::string text = object.name;
  for (const Value& argument : object.arguments.as_list()) {
    if (!argument.is_string() && !argument.is_int()) return std::nullopt;
    text += ':' + key_text(argument);
  }
  return intern("call " + text, false);
}

PythonKeys::Rep::Class PythonKeys::Rep::of(const Value& value) {
  if (const auto small = small_integer(value)) return intern(fmt::format("i{}", *small), false);
  switch (value.kind()) {
    case Value::Kind::kFloat:
      return intern(number_text(value.as_real()), std::isnan(value.as_real()));
    case Value::Kind::kBigInt:
      return intern("i" + value.as_string(), false);
    case Value::Kind::kComplex: {
      const auto [re, im] = value.as_complex();
      const bool has_nan = std::isnan(re) || std::isnan(im);
      if (im == 0) return intern(number_text(re), has_nan);
      return intern(fmt::format("c{},{}", number_text(re), number_text(im)), has_nan);
    }
    case Value::Kind::kString:
      return intern("s" + value.as_string(), false);
    case Value::Kind::kBytes:
      return intern("b" + value.as_string(), false);
    case Value::Kind::kNone:
      return intern("none", false);
    case Value::Kind::kDType:
      return intern(fmt::format("d{}", static_cast<int>(value.as_dtype())), false);
    case Value::Kind::kTensor:
      return intern(fmt::format("tensor {}", value.tensor_index()), false);
    case Value::Kind::kBackReference:
      return intern(fmt::format("up {}", value.distance()), false);
    default:
      break;
  }
  const auto known = nodes.find(value.node_id());
  if (known != nodes.end()) return known->second;
  Class result;
  if (value.kind() == Value::Kind::kTuple || value.kind() == Value::Kind::kFrozenSet) {
    result = of_items(value);
  } else if (value.kind() == Value::Kind::kSize) {
    std::vector<std::uint32_t> ids;
    for (const std::int64_t size : value.as_size())
      ids.push_back(intern(fmt::format("i{}", size), false).id);
    result = intern(fmt::format("t{}", fmt::join(ids, ",")), false);
  } else if (const auto call =
                 value.kind() == Value::Kind::kOpaque ? of_call(value.as_opaque()) : std::nullopt) {
    result = *call;
  } else {
    result = intern(fmt::format("@{}", value.node_id()), false);
  }
  nodes.emplace(value.node_id(), result);
  return result;
}

PythonKeys::PythonKeys() : rep_(std::make_unique<Rep>()) {}
PythonKeys::~PythonKeys() = default;

std::size_t PythonKeys::find_or_add(const Value& key, std::size_t place) {
  if (key.is_string()) return rep_->strings.try_emplace(key.as_string(), place).first->second;
  if (const auto small = small_integer(key))
    return rep_->integers.try_emplace(*small, place).first->second;
  const Rep::Class c = rep_->of(key);
  const auto [found, is_new] = rep_->others.try_emplace(c.id, Rep::Place{place, key.node_id()});
  if (is_new) return place;
  if (!c.has_nan || (key.node_id() && key.node_id() == found->second.node))
    return found->second.place;
  if (key.kind() == Value::Kind::kFloat) return place;  // another NaN
  fail(Code::kUnsupported,
       "two keys of one dict hold NaN: which NaN it is decides whether they are "
       "equal");
}

namespace {

/// True for a few distinct texts, as most dicts have them.
bool are_few_different_texts(const ValueDict& entries) {
  constexpr std::size_t kFew = 8;
  if (entries.size() > kFew) return false;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (!entries[i].first.is_string()) return entries.size() == 1;
    for (std::size_t j = 0; j < i; ++j)
      if (entries[i].first.as_string() == entries[j].first.as_string()) return false;
  }
  return true;
}

}  // namespace

void merge_equal_keys(ValueDict& entries) {
  if (are_few_different_texts(entries)) return;
  std::vector<std::size_t> kept;
  {
    PythonKeys keys;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const std::size_t first = keys.find_or_add(entries[i].first, i);
      if (first == i) {
        kept.push_back(i);
      } else {
        entries[first].second = std::move(entries[i].second);
      }
    }
  }
  if (kept.size() == entries.size()) return;
  for (std::size_t i = 0; i < kept.size(); ++i)
    if (kept[i] != i) entries[i] = std::move(entries[kept[i]]);
  entries.resize(kept.size());
}

void merge_equal_items(ValueList& items) {
  if (items.size() < 2) return;
  std::vector<std::size_t> kept;
  {
    PythonKeys keys;
    for (std::size_t i = 0; i < items.size(); ++i)
      if (keys.find_or_add(items[i], i) == i) kept.push_back(i);
  }
  if (kept.size() == items.size()) return;
  for (std::size_t i = 0; i < kept.size(); ++i)
    if (kept[i] != i) items[i] = std::move(items[kept[i]]);
  items.resize(kept.size());
}

void require_different_keys(const ValueDict& entries) {
  if (are_few_different_texts(entries)) return;
  PythonKeys keys;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const std::size_t first = keys.find_or_add(entries[i].first, i);
    if (first == i) continue;
    fail(Code::kUnsupported,
         fmt::format("the keys {} and {} of one dict are equal in Python: one value would be lost",
                     printable(key_text(entries[first].first)),
                     printable(key_text(entries[i].first))),
         "rename one of them");
  }
}

}  // namespace tessera
