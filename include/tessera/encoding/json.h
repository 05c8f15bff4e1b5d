#pragma once
// JSON, in one place (nlohmann inside json.cc only). Values are tessera::Value trees of None, bool, int, float, string, list, dict.
#include <functional>
#include <string>
#include <string_view>

#include <tessera/base/bytes.h>
#include <tessera/state/value.h>

namespace tessera {

struct JsonLimits {
  int max_depth = 16;
};

/// For untrusted text: duplicate keys, depth, BOM, NUL in names, invalid UTF-8, trailing bytes, numbers outside int64 (integers
/// beyond become kBigInt only when allowed by the caller: never here) and non-finite numbers are kCorrupt. Streaming (SAX).
Value parse_json(ByteView text, const JsonLimits& limits = {});

/// indent < 0: one line. Dict keys must be strings. Floats: shortest text that reads back equal; 1.0 stays 1.0.
std::string dump_json(const Value& value, int indent = -1);

/// RFC 8785 (JCS): keys sorted by UTF-16 code units, numbers as ECMAScript prints them.
std::string canonical_json(const Value& value);

/// A Python-like value as `ls` prints it (samples' tags; a tuple is a list): {"__float__":"nan"}, {"__int__":"..."},
/// {"__bytes_hex__":".."}, {"__bytesio_hex__":".."}, {"__size__":[..]}, {"__dtype__":".."}, {"__dict__":[[k,v],..]}, {"__set__":[..]},
/// {"__complex__":[re,im]}, {"__object__":"module.Class"}, {"__ndarray__":[..],"dtype":".."}, {"__npscalar__":v,"dtype":".."},
/// {"__tensor__":{"key":"","dtype":..,"shape":[..],"sha256":..}} (from `describe_tensor`).
using DescribeTensor = std::function<Value(std::uint32_t tensor_index)>;
Value to_json_value(const Value& value, const DescribeTensor& describe_tensor, ValueBudget& budget);

}  // namespace tessera
