#pragma once
// What ranks tell each other, as bytes: little-endian numbers, lengths before texts. The reader
// checks every length against what is left (kCorrupt): a peer of another version must not do harm.
#include <tessera/base/bytes.h>
#include <tessera/state/value.h>
#include <tessera/tensor/chunk.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

class WireWriter {
 public:
  void reserve(std::size_t bytes) { out_.reserve(bytes); }
  WireWriter& number(std::uint64_t n);
  WireWriter& integer(std::int64_t n) { return number(static_cast<std::uint64_t>(n)); }
  WireWriter& bytes(ByteView bytes);
  WireWriter& text(std::string_view text) { return bytes(as_bytes(text)); }
  WireWriter& integers(std::span<const std::int64_t> list);
  WireWriter& path(const Path& path);
  WireWriter& chunk(const Chunk& chunk);
  Bytes finish() { return std::move(out_); }

 private:
  Bytes out_;
};

class WireReader {
 public:
  explicit WireReader(ByteView bytes) : rest_(bytes) {}
  std::uint64_t number();
  std::int64_t integer() { return static_cast<std::int64_t>(number()); }
  /// A count of things of at least `least_bytes` each.
  std::size_t count(std::size_t least_bytes);
  ByteView bytes();
  std::string text() { return std::string(as_text(bytes())); }
  std::vector<std::int64_t> integers();
  Path path();
  Chunk chunk();
  bool at_end() const { return rest_.empty(); }

 private:
  ByteView rest_;
};

}  // namespace tessera
