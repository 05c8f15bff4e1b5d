#pragma once
// Box: a half-open axis-aligned region  { x : origin[d] <= x[d] < origin[d] + shape[d] }.
//
// Rank 0 is the single point of a scalar. A box with a zero extent is empty but still has an
// origin.
#include <tessera/tensor/shape.h>

#include <optional>
#include <string>
#include <vector>

namespace tessera {

struct Box {
  std::vector<std::int64_t> origin;  // one per dim
  Shape shape;

  static Box whole(const Shape& shape);
  int rank() const { return shape.rank(); }
  std::int64_t begin(int dim) const { return origin[static_cast<std::size_t>(dim)]; }
  std::int64_t end(int dim) const { return begin(dim) + shape[dim]; }
  std::int64_t numel() const { return shape.numel(); }
  bool empty() const { return numel() == 0; }

  /// True when every point of `inner` lies in this box (an empty inner box: its bounds do).
  bool contains(const Box& inner) const;
  /// The same box seen from `new_origin` as zero: origin - new_origin.
  Box relative_to(const std::vector<std::int64_t>& new_origin) const;
  Box translated(const std::vector<std::int64_t>& by) const;
  bool operator==(const Box&) const = default;
  /// "[0:2,3:5]"; "[]" for a scalar; "[4,2] from [0]" where origin and shape differ in rank.
  std::string to_string() const;
};

/// The common region, or nullopt when no point is common.
std::optional<Box> intersect(const Box& a, const Box& b);

}  // namespace tessera
