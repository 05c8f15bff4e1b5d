#include "lib/state/parameter_shape.h"

#include <vector>

namespace tessera {
namespace {

/// From rows [.., r] and columns [.., c], or (torch.optim) rows [.., r, 1] and columns [.., 1, c].
std::optional<Shape> from_factors(const Shape& row, const Shape& column) {
  std::vector<std::int64_t> extents(row.extents().begin(), row.extents().end());
  if (column.rank() == 0) return std::nullopt;
  const bool kept_dims = row.rank() == column.rank() && row.rank() >= 2 &&
                         row[row.rank() - 1] == 1 && column[column.rank() - 2] == 1;
  if (kept_dims) extents.pop_back();
  extents.push_back(column[column.rank() - 1]);
  return Shape(std::move(extents));
}

}  // namespace

std::optional<Shape> parameter_shape(std::span<const std::pair<std::string_view, Shape>> leaves) {
  std::optional<Shape> largest, row, column;
  for (const auto& [name, shape] : leaves) {
    if (name == "step") continue;
    if (name.ends_with("_row") || name == "row_var") {
      row = shape;
    } else if (name.ends_with("_col") || name == "col_var") {
      column = shape;
    } else if (!largest || shape.numel() > largest->numel()) {
      largest = shape;
    }
  }
  if (largest || !row || !column) return largest;
  return from_factors(*row, *column);
}

}  // namespace tessera
