#pragma once
// Tagged JSON: a Value in JSON and back, without loss. Where a file format can only hold text, its
// writer keeps the non-tensor tree in this form (safetensors: __metadata__["tessera.values"]).
//
//   None, bool, int within +-2^53, finite float, string, list   themselves
//   dict with plain string keys (no leading "__", no NUL)        an object
//   {"__tuple__":[..]} {"__set__":[..]} {"__frozenset__":[..]} {"__size__":[..]}
//   {"__dict__":[[k,v],..]}
//   {"__ordered_dict__":[[k,v],..],"attributes":v} {"__counter__":[[k,v],..]}
//   {"__default_dict__":[[k,v],..],"factory":"builtins.list"} (null: none) {"__int__":"..."}
//   {"__float__":"nan"} {"__float__":"nan:7ff8000000000001"} (of other bits than the usual one)
//   {"__complex__":[re,im]}
//   {"__bytes_hex__":".."} {"__bytearray_hex__":".."} {"__bytesio_hex__":".."}
//   {"__text_hex__":".."} (text that is no UTF-8)
//   {"__dtype__":"bfloat16"} {"__tensor__":"name"}
//
// Opaque objects have no form here: kUnsupported naming the class. Pure; thread-safe.
#include <tessera/state/value.h>

#include <cstdint>
#include <functional>
#include <string>

namespace tessera {

/// `tensor_name(index)`: the name under which a referenced tensor is stored.
Value to_tagged_json(const Value& value,
                     const std::function<std::string(std::uint32_t index)>& tensor_name,
                     ValueBudget& budget);

/// The inverse. `tensor_index(name)` throws for a name that is not there. kCorrupt for an unknown
/// or malformed tag and for depth past kMaxValueDepth.
Value from_tagged_json(const Value& json,
                       const std::function<std::uint32_t(const std::string& name)>& tensor_index);

/// Whether a defaultdict with this factory has a form here: None, or a type of Python's own.
bool is_plain_factory(const Value& factory);

/// JSON nesting a tagged tree can reach: every level of Value may take three.
inline constexpr int kTaggedJsonDepth = 3 * kMaxValueDepth + 8;

}  // namespace tessera
