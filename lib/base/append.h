#pragma once
// append: adds the elements of one vector at the end of another.
#include <vector>

namespace tessera {

template <class T>
void append(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace tessera
