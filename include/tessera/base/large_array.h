#pragma once
// Huge pages for arrays of millions of elements, so that filling one costs a page fault per 2 MiB
// instead of one per 4 KiB.
#include <algorithm>
#include <cstddef>
#include <vector>

namespace tessera {

/// Asks for huge pages under [data, data + bytes) if that is long enough to be worth it. Only a
/// hint: nothing depends on the answer.
void prefer_huge_pages(const void* data, std::size_t bytes);

/// items.reserve(count), in huge pages if it is large.
template <class T>
void reserve_large(std::vector<T>& items, std::size_t count) {
  if (count <= items.capacity()) return;
  items.reserve(count);
  prefer_huge_pages(items.data(), items.capacity() * sizeof(T));
}

/// Makes room for `more` elements. Grows by a quarter instead of doubling, because these tables are
/// kept and should not stay half empty.
template <class T>
void grow_large(std::vector<T>& items, std::size_t more) {
  const std::size_t needed = items.size() + more;
  if (needed <= items.capacity()) return;
  reserve_large(items, std::max({needed, items.capacity() + items.capacity() / 4, std::size_t{8}}));
}

}  // namespace tessera
