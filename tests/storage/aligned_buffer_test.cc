#include <tessera/storage/aligned_buffer.h>
#include <tessera/storage/file_system.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <fstream>
#include <memory>
#include <vector>

#include "tests/storage/storage_fixture.h"
#include "tests/support/sanitized.h"

namespace aligned_buffer_test {

using namespace tessera;
using namespace tessera::test;

TEST_CASE("AlignedBuffer is aligned, keeps its memory when big enough, and moves") {
  for (const std::size_t size :
       {std::size_t{1}, std::size_t{4096}, std::size_t{5000}, (std::size_t{128} << 10) - 1,
        std::size_t{128} << 10, (std::size_t{2} << 20) - 1, (std::size_t{2} << 20) + 1,
        std::size_t{8} << 20}) {
    AlignedBuffer buffer(size);
    REQUIRE(buffer.size() == size);
    REQUIRE(reinterpret_cast<std::uintptr_t>(buffer.data()) % kIoAlignment == 0);
    std::memset(buffer.data(), 1, size);
    const std::byte* before = buffer.data();
    buffer.reserve(size);
    buffer.reserve(1);
    REQUIRE(buffer.data() == before);
    REQUIRE(buffer.size() == size);
    AlignedBuffer moved(std::move(buffer));
    REQUIRE(moved.data() == before);
    buffer.reserve(10);  // a moved-from buffer is an empty one
    REQUIRE(buffer.size() == 10);
    REQUIRE(buffer.data() != nullptr);
    moved = AlignedBuffer();
    REQUIRE(moved.size() == 0);
  }
  REQUIRE(AlignedBuffer().size() == 0);
}

TEST_CASE("an AlignedBuffer of some size gives its memory back when it is dropped") {
  if (tessera::testing::kSanitized) {
    WARN("skipped: a sanitizer's memory is the heap's, and more than what is asked for");
    return;
  }
  const auto resident = [] {
    std::ifstream statm("/proc/self/statm");
    std::size_t all = 0, pages = 0;
    statm >> all >> pages;
    return pages * kIoAlignment;
  };
  for (const std::size_t size : {std::size_t{1} << 20, std::size_t{6} << 20}) {
    constexpr std::size_t kBuffers = 32;
    const std::size_t before = resident();
    std::vector<AlignedBuffer> buffers;
    std::vector<std::unique_ptr<int> > small;  // between them, and longer there
    for (std::size_t b = 0; b < kBuffers; ++b) {
      buffers.emplace_back(size);
      std::memset(buffers.back().data(), 1, size);
      small.push_back(std::make_unique<int>(0));
    }
    CHECK(resident() >= before + kBuffers * size * 9 / 10);
    buffers.clear();
    CHECK(resident() < before + kBuffers * size / 10);
  }
}

TEST_CASE("AlignedBuffer reports an impossible size as exhausted memory") {
  REQUIRE(code_of([] { AlignedBuffer buffer(~std::size_t{0}); }) == Code::kResourceExhausted);
  REQUIRE(code_of([] { AlignedBuffer buffer(~std::size_t{0} / 4); }) == Code::kResourceExhausted);
}

}  // namespace aligned_buffer_test
