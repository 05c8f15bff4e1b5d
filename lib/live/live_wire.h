#pragma once
// What ranks tell each other, as bytes: little-endian numbers, lengths before texts. The reader
// checks every length against what is left (kCorrupt): a peer of another version must not do harm.
#include <tessera/base/bytes.h>
#include <tessera/state/value.h>
#include <tessera/tensor/chunk.h>

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// The form: `Out` is given it by put(data, bytes).
template <class Out>
class WireForm {
 public:
  Out& number(std::uint64_t n) {
    std::byte raw[sizeof n];
    store_le(raw, n);
    return out().put(raw, sizeof n);
  }
  Out& integer(std::int64_t n) { return number(static_cast<std::uint64_t>(n)); }
  Out& bytes(ByteView bytes) { return number(bytes.size()).put(bytes.data(), bytes.size()); }
  Out& text(std::string_view text) { return bytes(as_bytes(text)); }
  Out& integers(std::span<const std::int64_t> list) {
    return number(list.size()).put(list.data(), list.size_bytes());
  }
  Out& path(const Path& path) {
    number(path.size());
    for (const PathItem& item : path)
      number(static_cast<std::uint64_t>(item.kind)).integer(item.index).text(item.key);
    return out();
  }
  Out& chunk(const Chunk& chunk) {
    return integers(chunk.box.origin)
        .integers(chunk.box.shape.extents())
        .integer(chunk.flat_begin)
        .integer(chunk.flat_end);
  }

 private:
  Out& out() { return static_cast<Out&>(*this); }
};

class WireWriter : public WireForm<WireWriter> {
 public:
  void reserve(std::size_t bytes) { out_.reserve(bytes); }
  WireWriter& put(const void* data, std::size_t bytes) {
    const auto* first = static_cast<const std::byte*>(data);
    out_.insert(out_.end(), first, first + bytes);
    return *this;
  }
  Bytes finish() { return std::move(out_); }

 private:
  Bytes out_;
};

/// Whether what would be written is what was written, without writing it.
class WireComparison : public WireForm<WireComparison> {
 public:
  explicit WireComparison(ByteView written) : rest_(written) {}
  WireComparison& put(const void* data, std::size_t bytes) {
    same_ = same_ && bytes <= rest_.size() &&
            (bytes == 0 || std::memcmp(rest_.data(), data, bytes) == 0);
    if (same_) rest_ = rest_.subspan(bytes);
    return *this;
  }
  bool same_so_far() const { return same_; }
  bool same() const { return same_ && rest_.empty(); }

 private:
  ByteView rest_;
  bool same_ = true;
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
