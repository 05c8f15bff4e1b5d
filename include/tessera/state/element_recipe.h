#pragma once
// ElementRecipe: elements that are not stored but computed from the elements of other tensors: a
// weight from its codes and scales, codes and scales from a weight. A tensor's chunks name such
// elements by Source::kComputed, so that planner, executor and readers take it like any other: what
// is asked for is what is read and computed.
//
// Pure and immutable; thread-safe.
#include <tessera/base/bytes.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace tessera {

/// Elements of a tensor's row-major ravel: `repeats` runs of `count`, `step` apart.
struct ElementRuns {
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::int64_t step = 0;
  std::int64_t repeats = 1;
  std::int64_t numel() const { return count * repeats; }
};

class ElementRecipe {
 public:
  virtual ~ElementRecipe() = default;

  /// Elements that are best computed at once, counted from the tensor's first.
  virtual std::int64_t at_once() const = 0;
  /// What elements [begin, end) are made of: one of each part.
  virtual std::vector<ElementRuns> needs(std::int64_t begin, std::int64_t end) const = 0;
  /// `parts`: dense elements of what needs() names, in that order; `out`: elements of the stored
  /// type of the tensor that is made. Throws kCorrupt where the values of a part make no sense.
  virtual void compute(std::int64_t begin, std::int64_t end, std::span<const ByteView> parts,
                       MutableBytes out) const = 0;
};

/// A recipe and the tensors that it is used with.
struct ComputedElements {
  std::shared_ptr<const ElementRecipe> recipe;
  std::vector<std::uint32_t> parts;  // indices in Manifest::tensors
};

}  // namespace tessera
