#pragma once
// Which keys of a dict, or items of a set, are one in Python: 1, 1.0 and True, 0.0 and -0.0, (1,)
// and (True,), torch.Size([1]) and (1,), 2**53 and 2.0**53. Objects of unknown classes, tensors and
// NaN equal nothing but themselves.
#include <tessera/state/value.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

namespace tessera {

/// Hashes keys as Python does. The values that it was given must outlive it.
class PythonKeys {
 public:
  PythonKeys();
  ~PythonKeys();
  PythonKeys(const PythonKeys&) = delete;
  PythonKeys& operator=(const PythonKeys&) = delete;

  /// The place that was given with the first key equal to this one: `place` where there is none.
  /// Throws kUnsupported where that depends on which NaN a tuple holds.
  std::size_t find_or_add(const Value& key, std::size_t place);

 private:
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

/// What a dict makes of entries that are set one after the other: of those with equal keys, the
/// first keeps its place and its key, and takes the last value.
void merge_equal_keys(ValueDict& entries);
/// What a set makes of its items: of equal ones, the first stays.
void merge_equal_items(ValueList& items);
/// Throws kUnsupported where two keys are one in Python: whoever loads them keeps one value of the
/// two.
void require_different_keys(const ValueDict& entries);

}  // namespace tessera
