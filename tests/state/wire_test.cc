// What ranks tell each other: what is written is what is read and what compares equal, and a
// message that is cut short or damaged is refused.
#include "lib/state/live/wire.h"

#include <tessera/base/error.h>

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <limits>
#include <random>

namespace wire_test {

using namespace tessera;

namespace {

/// As many bits as come, so that numbers of every length are among them.
std::uint64_t any_number(std::mt19937_64& random) { return random() >> random() % 64; }

Bytes bytes_of(std::initializer_list<int> values) {
  Bytes out;
  for (const int value : values) out.push_back(static_cast<std::byte>(value));
  return out;
}

}  // namespace

TEST_CASE("numbers of every size come back, are unlike any other, and are short") {
  std::mt19937_64 random(5);
  for (int round = 0; round < 20000; ++round) {
    const std::uint64_t n = round == 0   ? std::numeric_limits<std::uint64_t>::max()
                            : round == 1 ? 0
                                         : any_number(random);
    const Bytes written = WireWriter().number(n).finish();
    REQUIRE(written.size() == std::max<std::size_t>(1, (std::bit_width(n) + 6) / 7));
    WireReader in(written);
    REQUIRE(in.number() == n);
    REQUIRE(in.at_end());
    REQUIRE(WireWriter().number(n ^ std::uint64_t{1} << random() % 64).finish() != written);
    for (std::size_t cut = 0; cut < written.size(); ++cut)
      REQUIRE_THROWS_AS(WireReader(ByteView(written).first(cut)).number(), Error);
  }
}

TEST_CASE("numbers of more than 64 bits are refused") {
  const auto nines = [](std::initializer_list<int> end) {
    Bytes out(9, std::byte{0xff});
    for (const int each : end) out.push_back(static_cast<std::byte>(each));
    return out;
  };
  CHECK(WireReader(nines({1})).number() == std::numeric_limits<std::uint64_t>::max());
  const Bytes endless(100, std::byte{0xff});
  for (const Bytes& damaged : {nines({2}), nines({0x80, 1}), nines({0x81, 0}), endless})
    CHECK_THROWS_AS(WireReader(damaged).number(), Error);
}

TEST_CASE("messages of texts, paths, lists and chunks come back, and any cut is refused") {
  std::mt19937_64 random(7);
  for (int round = 0; round < 300; ++round) {
    const std::string text(random() % 300, 'x');
    Path path;
    for (std::uint64_t left = random() % 5; left > 0; --left) {
      PathItem item;
      item.kind = random() % 2 == 0 ? PathItem::Kind::kKey : PathItem::Kind::kIntKey;
      if (item.kind == PathItem::Kind::kKey)
        item.key = std::string(random() % 40, 'k');
      else
        item.index = static_cast<std::int64_t>(any_number(random) >> 1);
      path.push_back(item);
    }
    std::vector<std::int64_t> list;
    for (std::uint64_t left = random() % 6; left > 0; --left)
      list.push_back(static_cast<std::int64_t>(any_number(random)));
    const auto far = static_cast<std::int64_t>(any_number(random) >> 2);
    Chunk chunk = Chunk::whole_of({{3, far}, {5, 7}});
    if (random() % 2 == 0) chunk.flat_begin = 1 + static_cast<std::int64_t>(random() % 20);
    const Bytes written = WireWriter().text(text).path(path).integers(list).chunk(chunk).finish();
    WireReader in(written);
    REQUIRE(in.text() == text);
    REQUIRE(in.path() == path);
    REQUIRE(in.integers() == list);
    REQUIRE(in.chunk() == chunk);
    REQUIRE(in.at_end());
    const std::size_t cut = random() % written.size();
    WireReader shorter(ByteView(written).first(cut));
    REQUIRE_THROWS_AS((shorter.text(), shorter.path(), shorter.integers(), shorter.chunk()), Error);
    Bytes flipped = written;
    flipped[random() % written.size()] ^= std::byte{1} << random() % 8;
    try {  // whatever it says: nothing is read beyond it
      WireReader damaged(flipped);
      damaged.text();
      damaged.path();
      damaged.integers();
      damaged.chunk();
    } catch (const Error& error) {
      REQUIRE(error.code() == Code::kCorrupt);
    }
  }
}

TEST_CASE("counts beyond what a message can hold are refused before anything is taken for them") {
  const Bytes message = bytes_of({0x80, 0x80, 0x80, 0x80, 0x80, 0x10, 1, 2, 3});
  CHECK_THROWS_AS(WireReader(message).integers(), Error);
  CHECK_THROWS_AS(WireReader(message).path(), Error);
  CHECK_THROWS_AS(WireReader(message).text(), Error);
  CHECK_THROWS_AS(WireReader(bytes_of({3, 1, 2, 3, 4, 5})).count(2), Error);
  CHECK(WireReader(bytes_of({3, 1, 2, 3, 4, 5, 6})).count(2) == 3);
}

}  // namespace wire_test
