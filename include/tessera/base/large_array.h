#pragma once
// Arrays of millions of elements: memory for them in huge pages, so that filling one costs a fault
// per 2 MiB and not one per 4 KiB.
#include <algorithm>
#include <cstddef>
#include <vector>

namespace tessera {

/// Asks for huge pages under [data, data + bytes), where that is long enough to be worth it. A
/// hint: nothing depends on the answer.
void prefer_huge_pages(const void* data, std::size_t bytes);

/// items.reserve(count), in huge pages where that is much.
template <class T>
void reserve_large(std::vector<T>& items, std::size_t count) {
  if (count <= items.capacity()) return;
  items.reserve(count);
  prefer_huge_pages(items.data(), items.capacity() * sizeof(T));
}

/// Room for `more` elements. Grows by a quarter: tables that are kept must not carry a half-empty
/// doubling.
template <class T>
void grow_large(std::vector<T>& items, std::size_t more) {
  const std::size_t needed = items.size() + more;
  if (needed <= items.capacity()) return;
  reserve_large(items, std::max({needed, items.capacity() + items.capacity() / 4, std::size_t{8}}));
}

}  // namespace tessera
