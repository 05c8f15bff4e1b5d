// SHA-256 of two streams at once, against that of each alone, and the plain form against both.
#include "lib/storage/sha256_lanes.h"

#include <catch2/catch.hpp>
#include <random>

namespace sha256_lanes_test {

using namespace tessera;

TEST_CASE("two streams fed in any cuts have the hashes that each has alone") {
  std::mt19937_64 random(3);
  for (int round = 0; round < 300; ++round) {
    INFO("round " << round);
    Bytes contents[2];
    for (Bytes& content : contents) {
      content.resize(random() % (round < 200 ? 200 : 5000));
      for (std::byte& byte : content) byte = static_cast<std::byte>(random());
    }
    Sha256Lane lanes[2];
    ByteView rest[2] = {contents[0], contents[1]};
    while (!rest[0].empty() || !rest[1].empty()) {
      ByteView part[2];
      for (int l = 0; l < 2; ++l) {
        part[l] = rest[l].first(std::min<std::size_t>(rest[l].size(), random() % 300));
        rest[l] = rest[l].subspan(part[l].size());
      }
      if (random() % 4 == 0) {
        lanes[0].update(part[0]);
        lanes[1].update(part[1]);
      } else {
        Sha256Lane::update(lanes[0], part[0], lanes[1], part[1]);
      }
    }
    REQUIRE(lanes[0].finish() == sha256(contents[0]));
    REQUIRE(lanes[1].finish() == sha256(contents[1]));
  }
}

TEST_CASE("lengths around the padding's borders end as they should") {
  const Bytes content(260, std::byte{0x5a});
  for (std::size_t length = 0; length <= content.size(); ++length) {
    INFO("length " << length);
    Sha256Lane lane;
    lane.update(ByteView(content).first(length));
    REQUIRE(lane.finish() == sha256(ByteView(content).first(length)));
  }
}

TEST_CASE("the form for CPUs without instructions gives the known digests") {
  // FIPS 180-4's example "abc", and a million times "a": padded by hand.
  const auto digest = [](std::string text) {
    const std::uint64_t bits = text.size() * 8;
    text += '\x80';
    while (text.size() % 64 != 56) text += '\0';
    for (int shift = 56; shift >= 0; shift -= 8) text += static_cast<char>(bits >> shift);
    std::array<std::uint32_t, 8> state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                          0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    sha256_blocks_plain(state, as_bytes(text));
    Sha256Digest out;
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] = static_cast<std::uint8_t>(state[i / 4] >> (24 - 8 * (i % 4)));
    return out;
  };
  CHECK(hex(digest("abc")) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  const std::string many(1'000'000, 'a');
  CHECK(hex(digest(many)) == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  CHECK(digest(many) == sha256(as_bytes(many)));
}

}  // namespace sha256_lanes_test
