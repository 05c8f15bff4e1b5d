#pragma once
// numpy arrays and scalars, decoded from the opaque objects their pickles are. Nothing of numpy is
// called: the array is its shape, its dtype's letters and its bytes.
#include <tessera/state/value.h>

#include <functional>
#include <optional>

namespace tessera {

/// {"__ndarray__": nested lists, "dtype": name} or {"__npscalar__": v, "dtype": name}; nullopt when
/// `object` is neither or its dtype has no plain JSON form (structured, datetime, ...). `element`
/// turns an element into JSON.
std::optional<Value> numpy_json(const OpaqueObject& object,
                                const std::function<Value(const Value&)>& element,
                                ValueBudget& budget);

}  // namespace tessera
