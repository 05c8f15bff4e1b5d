#include <fmt/format.h>
#include <sys/mman.h>
#include <tessera/base/error.h>
#include <tessera/storage/aligned_buffer.h>
#include <tessera/storage/file_system.h>

#include <cstdlib>

namespace tessera {

namespace {

// Big buffers start on a huge page and ask for huge pages: fewer faults, fewer TLB misses.
constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

// More than any buffer may hold; keeps what follows from overflowing.
constexpr std::size_t kImpossibleBytes = std::size_t{1} << 40;

std::byte* allocate(std::size_t size_bytes) {
  const std::size_t alignment = size_bytes >= kHugePageBytes ? kHugePageBytes : kIoAlignment;
  if (size_bytes > kImpossibleBytes)
    fail(Code::kResourceExhausted, fmt::format("a buffer of {} bytes is impossible", size_bytes));
  const std::size_t rounded = (size_bytes + kIoAlignment - 1) / kIoAlignment * kIoAlignment;
  void* memory = nullptr;
  if (::posix_memalign(&memory, alignment, rounded) != 0)
    fail(Code::kResourceExhausted, fmt::format("no memory for a buffer of {} bytes", size_bytes),
         "lower --mem-limit or --threads");
  if (alignment == kHugePageBytes) ::madvise(memory, rounded, MADV_HUGEPAGE);  // a hint only
  return static_cast<std::byte*>(memory);
}

}  // namespace

void AlignedBuffer::Free::operator()(std::byte* p) const { std::free(p); }

AlignedBuffer::AlignedBuffer(std::size_t size_bytes) { reserve(size_bytes); }

void AlignedBuffer::reserve(std::size_t size_bytes) {
  if (size_bytes <= size_) return;
  data_.reset();  // first, so that old and new never exist together
  size_ = 0;
  data_.reset(allocate(size_bytes));
  size_ = size_bytes;
}

}  // namespace tessera
