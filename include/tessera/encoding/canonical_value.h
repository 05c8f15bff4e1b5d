#pragma once
// The typed canonical text of a Value, and its digest: two values have one text exactly when
// PyTorch would give equal objects of equal types. docs/canonical-values.md defines the text, so
// that anybody can make it in Python; what it decides:
//
// - Types count: 1, 1.0 and True differ, 0.0 and -0.0, NaNs of other bits, a list and a tuple, a
//   dict and each of its kinds, a set and a frozenset, bytes and a bytearray.
// - The order of a dict, a defaultdict, a Counter and a set does not count, as in Python; that of
//   an OrderedDict, and of the items of an object of another class, does.
// - An object is its class, how it was made, its arguments, state and items; a tensor inside, or a
//   bare storage, is its type, shape, content and quantizer; a cycle is the distance to the
//   container that is meant.
// - Sharing does not count: [x, x] and [x, copy of x] have one text.
//
// A text longer than kMostInlineText stands in its container as '#' and its SHA-256: texts are
// short whatever a value expands to, and a shared node is digested once.
#include <tessera/state/value.h>

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>

namespace tessera {

inline constexpr std::size_t kMostInlineText = 64;  // bytes

/// Not thread-safe: it remembers what it has digested. The values must outlive it.
class ValueDigester {
 public:
  /// Text of a tensor inside a value: "dtype \t shape \t sha256" and, if it is quantized, "\t
  /// quantizer", as a line of hash's root has it.
  using TensorText = std::function<std::string(std::uint32_t index)>;
  explicit ValueDigester(TensorText tensor) : tensor_(std::move(tensor)) {}

  /// SHA-256 (hex) of the canonical text.
  std::string digest(const Value& value) { return digest_of(part(value)); }
  /// How the value is written inside a container: the text itself, or '#' and its digest.
  std::string text(const Value& value) { return part(value).text; }
  /// Whether the text covers the whole value: false for what the reader could not follow
  /// (OpaqueObject::How::kExtension), of which only the class is known.
  bool is_whole(const Value& value) { return part(value).whole; }

 private:
  struct Part {
    std::string text;
    bool whole = true;
  };
  class Writer;

  const Part& part(const Value& value);
  static std::string digest_of(const Part& part);

  TensorText tensor_;
  std::unordered_map<const void*, Part>
      known_;  // long ones alone: short ones are as soon made anew
  Part last_;
};

}  // namespace tessera
