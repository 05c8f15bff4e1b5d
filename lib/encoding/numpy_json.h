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

/// An array as its pickle holds it.
struct NumpyArray {
  const Value* shape = nullptr;
  const Value* dtype = nullptr;
  const Value* data = nullptr;  // bytes in the array's own order, or the list of its objects
  bool fortran = false;
  bool prints = false;  // numpy_json() has a form for its type
};

/// The parts of an array of bytes of the class numpy.ndarray itself; nullopt for all else.
std::optional<NumpyArray> plain_array(const OpaqueObject& object);

}  // namespace tessera
