#pragma once
// Values of the seal's JSON, written and read.
#include <tessera/base/error.h>
#include <tessera/state/balance.h>
#include <tessera/state/value.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lib/state/fields.h"

namespace tessera {

/// What encode_balance() wrote. Throws kCorrupt where it does not add up.
Balance decode_balance(const Field& object);
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

/// "not a seal: ..." for all that a field below refuses.
inline Field seal_field(const Value& json) { return Field(json, "not a seal"); }

}  // namespace seal_json
}  // namespace tessera
