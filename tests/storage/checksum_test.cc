#include <tessera/storage/checksum.h>
#include <zlib.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <thread>

#include "tests/storage/storage_fixture.h"

namespace checksum_test {

using namespace tessera;
using namespace tessera::test;

namespace {

// The definition, bit by bit.
std::uint32_t slow_crc32(ByteView data) {
  std::uint32_t crc = 0xffffffff;
  for (const std::byte byte : data) {
    crc ^= static_cast<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? 0xedb88320u : 0u);
  }
  return ~crc;
}

}  // namespace

TEST_CASE("crc32 is the zip polynomial at every length and alignment") {
  REQUIRE(crc32(0, as_bytes("123456789")) == 0xcbf43926u);
  const Bytes data = random_bytes(3000, 1);
  for (std::size_t begin = 0; begin < 20; ++begin) {
    for (std::size_t length = 0; length < 600; length += 7) {
      const ByteView part = ByteView(data).subspan(begin, length);
      REQUIRE(crc32(0, part) == slow_crc32(part));
    }
  }
}

TEST_CASE("crc32 continues over pieces") {
  const Bytes data = random_bytes(10000, 2);
  const std::uint32_t whole = slow_crc32(data);
  for (std::size_t cut = 0; cut <= data.size(); cut += 997) {
    const std::uint32_t first = crc32(0, ByteView(data).first(cut));
    REQUIRE(crc32(first, ByteView(data).subspan(cut)) == whole);
  }
}

TEST_CASE("copy_crc32 copies all bytes and sums them") {
  const Bytes data = random_bytes(100'003, 3);
  for (const std::size_t length :
       {std::size_t{0}, std::size_t{1}, std::size_t{16384}, std::size_t{16385}, data.size()}) {
    Bytes to(length + 1, std::byte{0x5a});
    const ByteView from = ByteView(data).first(length);
    REQUIRE(copy_crc32(7, to.data(), from) == crc32(7, from));
    REQUIRE(std::equal(from.begin(), from.end(), to.begin()));
    REQUIRE(to.back() == std::byte{0x5a});
  }
}

TEST_CASE("crc32_combine equals the sum of the joined bytes") {
  const Bytes data = random_bytes(70'000, 4);
  for (std::size_t cut = 0; cut <= data.size(); cut += 3571) {
    const ByteView a = ByteView(data).first(cut);
    const ByteView b = ByteView(data).subspan(cut);
    REQUIRE(tessera::crc32_combine(crc32(0, a), crc32(0, b), b.size()) == slow_crc32(data));
  }
}

TEST_CASE("crc32_combine takes lengths beyond four GiB") {
  // Zeros doubled: the CRC of 2^33 zeros from that of 2^12, by combining alone, in two different
  // splits.
  std::uint32_t crc = crc32(0, Bytes(4096));
  std::uint64_t length = 4096;
  while (length < std::uint64_t{1} << 33) {
    crc = tessera::crc32_combine(crc, crc, length);
    length *= 2;
  }
  const std::uint32_t one = crc32(0, Bytes(1));
  const std::uint32_t longer = tessera::crc32_combine(crc, one, 1);
  REQUIRE(longer == tessera::crc32_combine(one, crc, length));
}

TEST_CASE("sha256 gives the published digests") {
  REQUIRE(hex(sha256(as_bytes(""))) ==
          "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  REQUIRE(hex(sha256(as_bytes("abc"))) ==
          "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  Sha256 hash;
  for (int i = 0; i < 1000; ++i) hash.update(Bytes(1000, std::byte{'a'}));
  REQUIRE(hex(hash.finish()) == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("CrcFold gives the record's CRC whatever the order of its pieces") {
  const Bytes data = random_bytes(5000, 5);
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    INFO("seed " << seed);
    std::mt19937_64 random(seed);
    std::vector<std::size_t> cuts{0, data.size()};
    for (int i = 0; i < 12; ++i) cuts.push_back(random() % (data.size() + 1));
    std::sort(cuts.begin(), cuts.end());
    std::vector<std::size_t> order(cuts.size() - 1);
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random);
    CrcFold fold(data.size());
    std::uint64_t added = 0;
    for (const std::size_t i : order) {
      REQUIRE(fold.complete() == (added == data.size()));
      const ByteView part = ByteView(data).subspan(cuts[i], cuts[i + 1] - cuts[i]);
      fold.add(cuts[i], part.size(), crc32(0, part));
      added += part.size();
    }
    REQUIRE(fold.complete());
    REQUIRE(fold.value() == slow_crc32(data));
  }
}

TEST_CASE("CrcFold takes pieces from several threads") {
  constexpr std::size_t kPiece = 64;
  const Bytes data = random_bytes(kPiece * 1000, 6);
  CrcFold fold(data.size());
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = t; i < 1000; i += 4) {
        const ByteView part = ByteView(data).subspan(i * kPiece, kPiece);
        fold.add(i * kPiece, kPiece, crc32(0, part));
        fold.complete();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  REQUIRE(fold.complete());
  REQUIRE(fold.value() == slow_crc32(data));
}

TEST_CASE("CrcFold refuses overlap, pieces past the end, and an early value") {
  CrcFold fold(100);
  fold.add(10, 20, 1);
  REQUIRE(code_of([&] { fold.add(29, 5, 1); }) == Code::kInternal);
  REQUIRE(code_of([&] { fold.add(5, 6, 1); }) == Code::kInternal);
  REQUIRE(code_of([&] { fold.add(90, 11, 1); }) == Code::kInternal);
  REQUIRE(code_of([&] { fold.add(101, 0, 1); }) == Code::kInternal);
  REQUIRE(code_of([&] { (void)fold.value(); }) == Code::kInternal);
  CrcFold empty(0);
  REQUIRE(empty.complete());
  REQUIRE(empty.value() == crc32(0, {}));
}

}  // namespace checksum_test
