// Codecs over whole byte strings.
#include <tessera/base/error.h>
#include <tessera/encoding/codec.h>
#include <zstd.h>

#include <catch2/catch.hpp>
#include <string>
#include <vector>

namespace tessera::codec_test {
namespace {

Bytes bytes(std::string_view text) { return {as_bytes(text).begin(), as_bytes(text).end()}; }

Bytes compress(std::string_view text, int level = 3) {
  Bytes out(ZSTD_compressBound(text.size()));
  const std::size_t size = ZSTD_compress(out.data(), out.size(), text.data(), text.size(), level);
  REQUIRE(!ZSTD_isError(size));
  out.resize(size);
  return out;
}

Status failure(std::string_view codec, ByteView in, std::uint64_t limit) {
  try {
    decode(codec, in, limit);
  } catch (const Error& error) {
    return error.status();
  }
  return {};
}

std::string noise(std::size_t size) {
  std::string out(size, '\0');
  std::uint32_t state = 1;
  for (char& c : out) c = static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
  return out;
}

}  // namespace

TEST_CASE("stream.zstd decodes what zstd wrote, of any size") {
  for (const std::size_t size : {0, 1, 1000, 65536, 65537, 3'000'000}) {
    CAPTURE(size);
    const std::string text = noise(size);
    CHECK(decode("stream.zstd", compress(text), size) == bytes(text));
    CHECK(decode("stream.zstd/1", compress(text), size + 10) == bytes(text));
  }
  Bytes two = compress("first ");
  const Bytes second = compress("second");
  two.insert(two.end(), second.begin(), second.end());
  CHECK(decode("stream.zstd@org/1.2", two, 100) == bytes("first second"));
}

TEST_CASE("stream.zstd never grows past its limit") {
  CHECK(failure("stream.zstd", compress(noise(1000)), 999).code == Code::kCorrupt);
  const Bytes bomb = compress(std::string(256 << 20, '\0'), 19);
  REQUIRE(bomb.size() < 64 << 10);
  CHECK_THAT(failure("stream.zstd", bomb, 1 << 20).message,
             Catch::Contains("more than 1048576 bytes"));
}

TEST_CASE("damaged zstd is corrupt") {
  const Bytes whole = compress(noise(100000));
  for (const std::size_t cut :
       {std::size_t{0}, std::size_t{3}, std::size_t{9}, whole.size() / 2, whole.size() - 1}) {
    CAPTURE(cut);
    CHECK(failure("stream.zstd", ByteView(whole).first(cut), 1 << 20).code == Code::kCorrupt);
  }
  Bytes trailing = whole;
  trailing.push_back(std::byte{'x'});
  CHECK(failure("stream.zstd", trailing, 1 << 20).code == Code::kCorrupt);
  CHECK(failure("stream.zstd", bytes("no zstd at all"), 1 << 20).code == Code::kCorrupt);
}

TEST_CASE("stream.rot13 swaps the case of letters, as PyTorch's example does") {
  CHECK(decode("stream.rot13/1", bytes("aZ[`{@ 09\xC3\x84"), 100) == bytes("Az[`{@ 09\xC3\x84"));
  CHECK(failure("stream.rot13", bytes("abc"), 2).code == Code::kCorrupt);
}

TEST_CASE("unknown codecs and versions are named and refused") {
  for (const std::string name :
       {"stream.lz4/1", "stream.zstd/2", "stream.zstd/", "", "/1", "zstd"}) {
    CAPTURE(name);
    CHECK_FALSE(has_codec(name));
    const Status status = failure(name, bytes("x"), 100);
    CHECK(status.code == Code::kUnsupported);
    CHECK_THAT(status.message, Catch::Contains("\"" + name + "\""));
  }
  CHECK(has_codec("stream.zstd"));
  CHECK(has_codec("stream.rot13@a/1.0"));
}

}  // namespace tessera::codec_test
