// SHA-256 of two streams at once, against OpenSSL's of each.
#include "lib/storage/sha256_lanes.h"

#include <catch2/catch.hpp>
#include <random>

namespace sha256_lanes_test {

using namespace tessera;

TEST_CASE("two streams fed in any cuts have the hashes that each has alone") {
  if (!has_sha_instructions()) {
    WARN("this CPU has no instructions for SHA-256: skipped");
    return;
  }
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
  if (!has_sha_instructions()) return;
  const Bytes content(260, std::byte{0x5a});
  for (std::size_t length = 0; length <= content.size(); ++length) {
    INFO("length " << length);
    Sha256Lane lane;
    lane.update(ByteView(content).first(length));
    REQUIRE(lane.finish() == sha256(ByteView(content).first(length)));
  }
}

}  // namespace sha256_lanes_test
