#pragma once
// {"__name__": value}: how JSON shows what it has no form for. Two dialects use it: what `ls`
// prints (json_value.cc) and what text formats store (tagged_json.cc).
#include <tessera/base/text.h>
#include <tessera/state/value.h>

#include <string>
#include <utility>

namespace tessera {

inline Value json_tag(const char* name, Value value) {
  return Value::dict({{Value::string(name), std::move(value)}});
}

inline std::string hex_of(const std::string& bytes) {
  return to_hex({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()});
}

}  // namespace tessera
