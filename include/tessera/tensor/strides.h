#pragma once
// Strides, in elements, of arrays that need not be dense.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace tessera {

/// Whether no two elements share memory, as far as sorting by stride shows it: each step goes past
/// what the smaller ones reach. All dense, transposed and sliced arrays are so; an expanded one, or
/// a sliding window, is not. One stride per extent.
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
