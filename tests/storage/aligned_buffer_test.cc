#include <tessera/storage/aligned_buffer.h>
#include <tessera/storage/file_system.h>

#include <catch2/catch.hpp>

#include "tests/storage/storage_fixture.h"

namespace aligned_buffer_test {

using namespace tessera;
using namespace tessera::test;

TEST_CASE("AlignedBuffer is aligned, keeps its memory when big enough, and moves") {
  for (const std::size_t size :
       {std::size_t{1}, std::size_t{4096}, std::size_t{5000}, std::size_t{8} << 20}) {
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
  }
  REQUIRE(AlignedBuffer().size() == 0);
}

TEST_CASE("AlignedBuffer reports an impossible size as exhausted memory") {
  REQUIRE(code_of([] { AlignedBuffer buffer(~std::size_t{0}); }) == Code::kResourceExhausted);
  REQUIRE(code_of([] { AlignedBuffer buffer(~std::size_t{0} / 4); }) == Code::kResourceExhausted);
}

}  // namespace aligned_buffer_test
