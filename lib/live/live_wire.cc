#include "lib/live/live_wire.h"

#include <tessera/base/error.h>

namespace tessera {

namespace {

[[noreturn]] void short_message() {
  fail(Code::kCorrupt, "a message of another rank is cut short, or of another version");
}

}  // namespace

std::uint64_t WireReader::number() {
  if (rest_.size() < sizeof(std::uint64_t)) short_message();
  const auto n = load_le<std::uint64_t>(rest_.data());
  rest_ = rest_.subspan(sizeof n);
  return n;
}

std::size_t WireReader::count(std::size_t least_bytes) {
  const std::uint64_t n = number();
  if (n > rest_.size() / least_bytes) short_message();
  return static_cast<std::size_t>(n);
}

ByteView WireReader::bytes() {
  const std::size_t n = count(1);
  const ByteView out = rest_.first(n);
  rest_ = rest_.subspan(n);
  return out;
}

std::vector<std::int64_t> WireReader::integers() {
  std::vector<std::int64_t> list(count(sizeof(std::int64_t)));
  for (std::int64_t& n : list) n = integer();
  return list;
}

Path WireReader::path() {
  Path path(count(3 * sizeof(std::uint64_t)));
  for (PathItem& item : path) {
    const std::uint64_t kind = number();
    if (kind > static_cast<std::uint64_t>(PathItem::Kind::kIntKey)) short_message();
    item.kind = static_cast<PathItem::Kind>(kind);
    item.index = integer();
    item.key = text();
  }
  return path;
}

Chunk WireReader::chunk() {
  Chunk chunk;
  chunk.box.origin = integers();
  chunk.box.shape = Shape::checked(integers());
  chunk.flat_begin = integer();
  chunk.flat_end = integer();
  if (chunk.box.origin.size() != static_cast<std::size_t>(chunk.box.rank())) short_message();
  return chunk;
}

}  // namespace tessera
