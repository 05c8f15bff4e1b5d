// read_crc32 against the CRC of the same bytes in memory.
#include "lib/storage/read_crc.h"

#include <tessera/storage/checksum.h>
#include <tessera/storage/memory_file_system.h>

#include <catch2/catch.hpp>
#include <random>
#include <stdexcept>

namespace read_crc_test {

using namespace tessera;

TEST_CASE("bytes of a file have the same CRC in blocks of any size") {
  std::mt19937_64 random(3);
  Bytes content(1000);
  for (std::byte& each : content) each = static_cast<std::byte>(random());
  MemoryFileSystem fs;
  fs.write_file("/f", content);
  const auto file = fs.open_directory("/")->open("f");
  for (int round = 0; round < 500; ++round) {
    const std::uint64_t offset = random() % (content.size() + 1);
    const std::uint64_t length = random() % (content.size() - offset + 1);
    const std::uint64_t block = 1 + random() % 1200;
    const auto before = static_cast<std::uint32_t>(random());
    std::uint64_t told = 0;
    const std::uint32_t found =
        read_crc32(before, *file, offset, length, block, [&](std::size_t bytes) { told += bytes; });
    REQUIRE(found == crc32(before, ByteView(content).subspan(offset, length)));
    REQUIRE(told == length);
    REQUIRE(read_crc32(before, *file, offset, length, block) == found);
  }
}

TEST_CASE("reading for a CRC stops where the tick throws, and where the file ends") {
  MemoryFileSystem fs;
  fs.write_file("/f", Bytes(100));
  const auto file = fs.open_directory("/")->open("f");
  int blocks = 0;
  CHECK_THROWS_AS(read_crc32(0, *file, 0, 100, 10,
                             [&](std::size_t) {
                               if (++blocks == 3) throw std::runtime_error("enough");
                             }),
                  std::runtime_error);
  CHECK(blocks == 3);
  CHECK_THROWS(read_crc32(0, *file, 90, 20, 10));
}

}  // namespace read_crc_test
