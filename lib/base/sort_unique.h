#pragma once
#include <algorithm>
#include <vector>

namespace tessera {

/// Each of `values` once, in order.
template <class T>
void sort_unique(std::vector<T>& values) {
  std::ranges::sort(values);
  values.erase(std::unique(values.begin(), values.end()), values.end());
}

}  // namespace tessera
