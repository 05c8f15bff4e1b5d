#pragma once
// append: adds the elements of one vector at the end of another.
#include <algorithm>
#include <iterator>
#include <vector>

namespace tessera {

template <class T>
void append(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

/// The same with elements moved: `from` is not to be used after it.
template <class T>
void append(std::vector<T>& to, std::vector<T>&& from) {
  std::ranges::move(from, std::back_inserter(to));
}

}  // namespace tessera
