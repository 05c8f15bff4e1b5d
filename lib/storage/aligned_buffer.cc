#include <fmt/format.h>
#include <sys/mman.h>
#include <tessera/base/error.h>
#include <tessera/storage/aligned_buffer.h>
#include <tessera/storage/file_system.h>

#include <cstdint>
#include <cstdlib>

namespace tessera {

namespace {

// Big buffers start on a huge page and ask for huge pages: fewer faults, fewer TLB misses.
constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

// From this size on a buffer is a mapping of its own, which goes back to the system when it is
// dropped: in the heap it would leave holes beside the small things that outlive it.
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TESSERA_HEAP_ALONE
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(TESSERA_HEAP_ALONE)
constexpr std::size_t kMappedBytes = SIZE_MAX;  // the sanitizer knows the borders of its own alone
#else
constexpr std::size_t kMappedBytes = std::size_t{128} << 10;
#endif

// More than any buffer may hold; keeps what follows from overflowing.
constexpr std::size_t kImpossibleBytes = std::size_t{1} << 40;

std::size_t in_pages(std::size_t size_bytes) {
  return (size_bytes + kIoAlignment - 1) / kIoAlignment * kIoAlignment;
}

void* map(std::size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

/// `bytes` of pages that start on a huge page.
void* map_huge(std::size_t bytes) {
  auto* room = static_cast<std::byte*>(map(bytes + kHugePageBytes));
  if (room == nullptr) return nullptr;
  const std::size_t before = -reinterpret_cast<std::uintptr_t>(room) % kHugePageBytes;
  if (before > 0) ::munmap(room, before);
  ::munmap(room + before + bytes, kHugePageBytes - before);
  ::madvise(room + before, bytes, MADV_HUGEPAGE);  // a hint only
  return room + before;
}

std::byte* allocate(std::size_t size_bytes) {
  if (size_bytes > kImpossibleBytes)
    fail(Code::kResourceExhausted, fmt::format("a buffer of {} bytes is impossible", size_bytes));
  const std::size_t bytes = in_pages(size_bytes);
  void* memory = size_bytes < kMappedBytes     ? std::aligned_alloc(kIoAlignment, bytes)
                 : size_bytes < kHugePageBytes ? map(bytes)
                                               : map_huge(bytes);
  if (memory == nullptr)
    fail(Code::kResourceExhausted, fmt::format("no memory for a buffer of {} bytes", size_bytes),
         "lower --mem-limit or --threads");
  return static_cast<std::byte*>(memory);
}

void release(std::byte* memory, std::size_t size_bytes) {
  if (size_bytes < kMappedBytes)
    std::free(memory);
  else
    ::munmap(memory, in_pages(size_bytes));
}

}  // namespace

AlignedBuffer::AlignedBuffer(std::size_t size_bytes) { reserve(size_bytes); }

AlignedBuffer::~AlignedBuffer() { release(data_, size_); }

void AlignedBuffer::reserve(std::size_t size_bytes) {
  if (size_bytes <= size_) return;
  release(std::exchange(data_, nullptr), std::exchange(size_, 0));  // old and new: never together
  data_ = allocate(size_bytes);
  size_ = size_bytes;
}

}  // namespace tessera
