#include "lib/state/live/wire.h"

#include <tessera/base/checked.h>
#include <tessera/base/error.h>
#include <tessera/tensor/packed_chunks.h>

namespace tessera {

namespace {

[[noreturn]] void short_message() {
  fail(Code::kCorrupt, "a message from another rank is truncated, or of another version");
}

[[noreturn]] void damaged_message() {
  fail(Code::kCorrupt, "a message from another rank is damaged, or of another version");
}

}  // namespace

std::uint64_t WireReader::number() {
  std::uint64_t n = 0;
  for (std::size_t i = 0; i < rest_.size(); ++i) {
    const auto byte = std::to_integer<std::uint64_t>(rest_[i]);
    const int shift = static_cast<int>(i) * kWireBits;
    const std::uint64_t part = byte % kWireMore;
    if (shift >= 64 || part << shift >> shift != part) damaged_message();
    n |= part << shift;
    if (byte >= kWireMore) continue;
    rest_ = rest_.subspan(i + 1);
    return n;
  }
  short_message();
}

std::size_t WireReader::count(std::size_t least_numbers) {
  const std::uint64_t n = number();
  if (n > rest_.size() / least_numbers) short_message();
  return static_cast<std::size_t>(n);
}

ByteView WireReader::bytes() { return take(number()); }

ByteView WireReader::take(std::uint64_t bytes) {
  if (bytes > rest_.size()) short_message();
  const ByteView out = rest_.first(static_cast<std::size_t>(bytes));
  rest_ = rest_.subspan(out.size());
  return out;
}

std::vector<std::int64_t> WireReader::integers() { return listed(count(1)); }

std::vector<std::int64_t> WireReader::listed(std::size_t count) {
  if (count > rest_.size()) short_message();
  std::vector<std::int64_t> list(count);
  for (std::int64_t& n : list) n = integer();
  return list;
}

Path WireReader::path() {
  Path path(count(1));
  for (PathItem& item : path) {
    const std::uint64_t head = number();
    const std::uint64_t kind = head & ((std::uint64_t{1} << kPathKindBits) - 1);
    if (kind > static_cast<std::uint64_t>(PathItem::Kind::kIntKey)) damaged_message();
    item.kind = static_cast<PathItem::Kind>(kind);
    if (item.kind == PathItem::Kind::kKey)
      item.key = as_text(take(head >> kPathKindBits));
    else
      item.index = integer();
  }
  return path;
}

Chunk WireReader::chunk() {
  Chunk chunk;
  const std::uint64_t head = number();
  chunk.box.origin = integers();
  if (chunk.box.origin.size() != head >> 1) damaged_message();
  chunk.box.shape = Shape::checked(listed(chunk.box.origin.size()));
  for (int d = 0; d < chunk.box.rank(); ++d) {
    const std::int64_t begin = chunk.box.origin[static_cast<std::size_t>(d)];
    if (begin < 0 || !checked_add(begin, chunk.box.shape[d])) damaged_message();
  }
  if ((head & 1) == 0) return Chunk::whole_of(std::move(chunk.box));
  chunk.flat_begin = integer();
  chunk.flat_end = integer();
  if (!ChunkView(chunk).has_range_in_box()) damaged_message();
  return chunk;
}

}  // namespace tessera
