#pragma once
// Strides, in elements, of arrays that need not be dense.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace tessera {

/// True if no two elements share memory, as far as sorting by stride shows it: each stride is
/// larger than the span of the dims with smaller strides. True for dense, transposed and sliced
/// arrays; false for expanded ones and sliding windows. One stride per extent.
inline bool elements_apart(std::span<const std::int64_t> extents,
                           std::span<const std::int64_t> strides) {
  std::vector<std::pair<std::int64_t, std::int64_t>> dims;  // stride, extent
  for (std::size_t d = 0; d < extents.size(); ++d)
    if (extents[d] > 1) dims.emplace_back(strides[d], extents[d]);
  std::ranges::sort(dims);
  std::int64_t past = 0;
  for (const auto& [stride, extent] : dims) {
    if (stride <= past) return false;
    past += stride * (extent - 1);
  }
  return true;
}

}  // namespace tessera
