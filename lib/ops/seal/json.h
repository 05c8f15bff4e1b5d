#pragma once
// Fields of the seal's JSON: checked access to untrusted text, and the values that are written.
#include <tessera/base/error.h>
#include <tessera/state/balance.h>
#include <tessera/state/value.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// What encode_balance() wrote. Throws kCorrupt where it does not add up.
Balance decode_balance(const Value& object);
/// Upper bound of its text.
std::uint64_t balance_size_bound(const Balance& balance);

namespace seal_json {

inline Value text(std::string_view s) { return Value::string(std::string(s)); }
inline Value number(std::uint64_t n) { return Value::integer(static_cast<std::int64_t>(n)); }

inline Value strings(const std::vector<std::string>& list) {
  ValueList out;
  for (const std::string& s : list) out.push_back(text(s));
  return Value::list(std::move(out));
}

[[noreturn]] inline void bad(std::string_view what) {
  fail(Code::kCorrupt, "not a seal: " + std::string(what));
}

inline const Value& member(const Value& object, std::string_view key) {
  const Value* found = object.find(key);
  if (found == nullptr) bad("no \"" + std::string(key) + "\"");
  return *found;
}

inline std::string string_of(const Value& object, std::string_view key) {
  const Value& value = member(object, key);
  if (!value.is_string()) bad("\"" + std::string(key) + "\" is no string");
  return value.as_string();
}

inline std::uint64_t number_field(const Value& object, std::string_view key) {
  const Value& value = member(object, key);
  if (!value.is_int() || value.as_int() < 0) bad("\"" + std::string(key) + "\" is no size");
  return static_cast<std::uint64_t>(value.as_int());
}

inline const ValueList& list_of(const Value& object, std::string_view key) {
  const Value& value = member(object, key);
  if (value.kind() != Value::Kind::kList) bad("\"" + std::string(key) + "\" is no list");
  return value.as_list();
}

}  // namespace seal_json
}  // namespace tessera
