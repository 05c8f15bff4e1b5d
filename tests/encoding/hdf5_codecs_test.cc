// HDF5's filters undone: what they give, and what they refuse.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/encoding/codec.h>
#include <zlib.h>

#include <catch2/catch.hpp>
#include <random>

namespace tessera::hdf5_codecs_test {
namespace {

constexpr std::uint64_t kPlenty = 1 << 24;

Bytes bytes_of(std::initializer_list<int> values) {
  Bytes out;
  for (const int v : values) out.push_back(static_cast<std::byte>(v));
  return out;
}

Bytes counting(std::size_t n) {
  Bytes out;
  for (std::size_t i = 0; i < n; ++i) out.push_back(static_cast<std::byte>(i * 37 % 251));
  return out;
}

Bytes deflated(const Bytes& in) {
  Bytes out(compressBound(static_cast<uLong>(in.size())));
  uLongf size = static_cast<uLongf>(out.size());
  REQUIRE(compress(reinterpret_cast<Bytef*>(out.data()), &size,
                   reinterpret_cast<const Bytef*>(in.data()),
                   static_cast<uLong>(in.size())) == Z_OK);
  out.resize(size);
  return out;
}

Code refusal(const std::string& codec, const Bytes& in, std::uint64_t limit = kPlenty) {
  try {
    decode(codec, in, limit);
  } catch (const Error& error) {
    return error.code();
  }
  return Code::kOk;
}

/// The definition, byte by byte: element i's byte j stands at j * count + i.
Bytes shuffled(const Bytes& in, std::size_t size) {
  Bytes out = in;
  const std::size_t count = in.size() / size;
  for (std::size_t i = 0; i < count; ++i)
    for (std::size_t j = 0; j < size; ++j) out[j * count + i] = in[i * size + j];
  return out;
}

}  // namespace

TEST_CASE("deflate gives back what zlib packed") {
  for (const std::size_t n : {0, 1, 100, 70000}) {
    const Bytes data = counting(n);
    CHECK(decode(fmt::format("hdf5.deflate:{}", n), deflated(data), kPlenty) == data);
  }
}

TEST_CASE("deflate refuses bombs, cut streams and noise") {
  const Bytes bomb = deflated(Bytes(1 << 20));
  CHECK(refusal("hdf5.deflate:1000", bomb) == Code::kCorrupt);
  CHECK(refusal("hdf5.deflate:1048576", bomb) == Code::kOk);
  Bytes cut = deflated(counting(5000));
  cut.resize(cut.size() / 2);
  CHECK(refusal("hdf5.deflate:5000", cut) == Code::kCorrupt);
  CHECK(refusal("hdf5.deflate:5000", counting(64)) == Code::kCorrupt);
  CHECK(refusal("hdf5.deflate:5000", {}) == Code::kCorrupt);
}

TEST_CASE("a chunk above the memory limit is no damage") {
  CHECK(refusal("hdf5.deflate:2000", deflated(counting(2000)), 1000) == Code::kResourceExhausted);
  CHECK(refusal("hdf5.lzf:2000", {}, 1000) == Code::kResourceExhausted);
}

TEST_CASE("shuffle puts the bytes of each element together again") {
  for (const std::size_t size : {1, 2, 4, 8, 16})
    for (const std::size_t n : {0, 1, 16, 37, 4096}) {
      const Bytes data = counting(n);
      CHECK(decode(fmt::format("hdf5.shuffle:{}", size), shuffled(data, size), kPlenty) == data);
    }
}

TEST_CASE("shuffle of elements larger than the chunk changes nothing, at once") {
  CHECK(decode("hdf5.shuffle:9000000000000000000", counting(37), kPlenty) == counting(37));
}

TEST_CASE("fletcher32 strips a checksum that holds and refuses one that does not") {
  // By hand: words 0x0102, 0x0304; low = 0x0406, high = 0x0102 + 0x0406 = 0x0508.
  const Bytes right = bytes_of({1, 2, 3, 4, 0x06, 0x04, 0x08, 0x05});
  CHECK(decode("hdf5.fletcher32", right, kPlenty) == bytes_of({1, 2, 3, 4}));
  // One odd byte counts as the high half of a word: 0x0506 + 0x0100.
  const Bytes odd = bytes_of({5, 6, 1, 0x06, 0x06, 0x0c, 0x0b});
  CHECK(decode("hdf5.fletcher32", odd, kPlenty) == bytes_of({5, 6, 1}));
  for (std::size_t i = 0; i < right.size(); ++i) {
    Bytes wrong = right;
    wrong[i] ^= std::byte{0x10};
    CHECK(refusal("hdf5.fletcher32", wrong) == Code::kCorrupt);
  }
  CHECK(refusal("hdf5.fletcher32", bytes_of({1, 2, 3})) == Code::kCorrupt);
}

TEST_CASE("lzf copies literals and repeats what came before") {
  // "abc", then 6 bytes from 3 back, then a long run: 7 + 5 + 2 bytes from 1 back.
  const Bytes packed = bytes_of({2, 'a', 'b', 'c', 0x80, 2, 0xe0, 5, 0});
  CHECK(as_text(decode("hdf5.lzf:64", packed, kPlenty)) == "abcabcabccccccccccccccc");
  CHECK(refusal("hdf5.lzf:22", packed) == Code::kCorrupt);
  CHECK(refusal("hdf5.lzf:64", bytes_of({0x20, 5})) == Code::kCorrupt);  // before the beginning
  CHECK(refusal("hdf5.lzf:64", bytes_of({4, 'a'})) == Code::kCorrupt);   // ends early
  CHECK(refusal("hdf5.lzf:64", bytes_of({0x20})) == Code::kCorrupt);
}

TEST_CASE("names that no reader makes are refused") {
  for (const std::string name :
       {"hdf5.", "hdf5.szip", "hdf5.deflate", "hdf5.deflate:x", "hdf5.deflate:-1",
        "hdf5.shuffle:9999999999999999999999", "hdf5.crop:1"}) {
    CAPTURE(name);
    const Code code = refusal(name, counting(30));
    CHECK((code == Code::kUnsupported || code == Code::kCorrupt));
  }
  CHECK(has_codec("hdf5.shuffle:4"));
  CHECK_FALSE(has_codec("hdf5.szip"));
}

TEST_CASE("noise is refused or decoded within bounds by every filter") {
  std::mt19937 random(20241121);
  for (int round = 0; round < 2000; ++round) {
    Bytes noise(random() % 200);
    for (std::byte& b : noise) b = static_cast<std::byte>(random());
    for (const std::string codec :
         {"hdf5.deflate:500", "hdf5.lzf:500", "hdf5.shuffle:7", "hdf5.fletcher32"}) {
      INFO("round " << round << " of seed 20241121, " << codec);
      std::size_t decoded = 0;
      try {
        decoded = decode(codec, noise, kPlenty).size();
      } catch (const Error& error) {
        CHECK(error.code() == Code::kCorrupt);
      }
      CHECK(decoded <= 500);
    }
  }
}

}  // namespace tessera::hdf5_codecs_test
