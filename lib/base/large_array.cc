#include <sys/mman.h>
#include <tessera/base/large_array.h>

#include <cstdint>

namespace tessera {

void prefer_huge_pages(const void* data, std::size_t bytes) {
  constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;
  // Below this the page cannot be the array's own, and small arrays would grow what is resident.
  constexpr std::size_t kLeastBytes = 8 * kHugePageBytes;
  if (bytes < kLeastBytes) return;
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t begin = (address + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  const std::uintptr_t end = (address + bytes) / kHugePageBytes * kHugePageBytes;
  ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

}  // namespace tessera
