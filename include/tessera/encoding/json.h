#pragma once
// All JSON goes through here; json.cc alone includes nlohmann. Values are tessera::Value trees of None, bool,
// int, float, string, list, dict.
//
// Reading is for untrusted text and streams: refused as kCorrupt are depth, duplicate keys at any
// level, a byte order mark, NUL in names, invalid UTF-8, trailing bytes, integers outside int64,
// non-finite numbers. Pure functions; thread-safe.
#include <tessera/base/bytes.h>
#include <tessera/state/value.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace tessera {

struct JsonLimits {
  int max_depth = 16;
  std::uint64_t max_values = std::uint64_t{1} << 22;  // parse_json only: what a tree may hold
};

/// Receives what the text says, in order. A handler may throw to stop. Defaults ignore the event.
class JsonHandler {
 public:
  virtual ~JsonHandler() = default;
  virtual void begin_object() {}
  virtual void key(std::string&& /*name*/) {}
  virtual void end_object() {}
  virtual void begin_array() {}
  virtual void end_array() {}
  /// null, boolean, integer, float or string.
  virtual void scalar(Value /*value*/) {}
};

/// For documents too large to be a tree: memory is the keys of the open objects.
void parse_json_events(ByteView text, JsonHandler& handler, const JsonLimits& limits = {});

Value parse_json(ByteView text, const JsonLimits& limits = {});

/// indent < 0: one line. Dict keys must be strings. Floats: shortest text that reads back
/// equal; 1.0 stays 1.0. Lone surrogates are written as \uXXXX, other invalid UTF-8 as U+FFFD.
/// Throws kInvalidArgument for what JSON cannot represent (bytes, NaN, tuples, ...).
std::string dump_json(const Value& value, int indent = -1);

/// RFC 8785 (JCS): keys sorted by UTF-16 code units, numbers as ECMAScript prints them.
std::string canonical_json(const Value& value);

/// A Python-like value as `ls` prints it. What JSON has no form for becomes an object with a tag:
///
///   NaN, Inf            {"__float__":"nan"}
///   beyond 64 bits      {"__int__":"..."}
///   bytes, BytesIO      {"__bytes_hex__":".."}, {"__bytesio_hex__":".."}
///   torch.Size, dtype   {"__size__":[..]}, {"__dtype__":".."}
///   keys not all text   {"__dict__":[[k,v],..]}
///   set, complex        {"__set__":[..]}, {"__complex__":[re,im]}
///   NumPy               {"__ndarray__":[..],"dtype":".."}, {"__npscalar__":v,"dtype":".."}
///   any other object    {"__object__":"module.Class"}
///   tensor              {"__tensor__":X}, X being what `describe_tensor` returns, for example
///                       {"key":"","dtype":..,"shape":[..],"sha256":..}
///
/// A tuple is a list.
using DescribeTensor = std::function<Value(std::uint32_t tensor_index)>;
Value to_json_value(const Value& value, const DescribeTensor& describe_tensor, ValueBudget& budget);

}  // namespace tessera
