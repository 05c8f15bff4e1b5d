#pragma once
// Where two values differ.
#include <tessera/encoding/canonical_value.h>

#include <optional>
#include <string>

namespace tessera {

struct ValueDifference {
  std::string path;        // ".state.lr", ".arguments[0]"; "" = the values themselves
  std::optional<Value> a;  // what is there; nullopt: nothing
  std::optional<Value> b;
};

/// One side: a value and the digester of its checkpoint.
struct DigestedValue {
  const Value& value;
  ValueDigester& digester;
};

/// The first place, in the order of A, where two values differ as the canonical text says; nullopt
/// if they are equal. `by_number`: floats that compare equal are equal (0.0 and -0.0, any NaN and
/// any other).
std::optional<ValueDifference> first_difference(DigestedValue a, DigestedValue b, bool by_number);

}  // namespace tessera
