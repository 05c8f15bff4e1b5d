#pragma once
// A recipe whose parts are better read for many elements than they are computed for: codes of
// columns lie in short runs, which are longer the more columns are read together.
#include <tessera/state/element_recipe.h>

namespace tessera {

/// Elements [begin, end).
struct ElementRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

class WindowedRecipe : public ElementRecipe {
 public:
  /// Those around `begin` whose parts are read together: whole blocks of at_once(), as many as have
  /// parts of about `most_bytes`.
  virtual ElementRange read_window(std::int64_t begin, std::uint64_t most_bytes) const = 0;
  /// As compute(), where `parts` are what needs() names of a window that [begin, end) lies in.
  virtual void compute_within(ElementRange window, std::int64_t begin, std::int64_t end,
                              std::span<const ByteView> parts, MutableBytes out) const = 0;
};

}  // namespace tessera
