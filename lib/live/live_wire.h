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

/// The form: `Out` is given it by put(data, bytes) and put_number(n).
template <class Out>
class WireForm {
 public:
  Out& number(std::uint64_t n) { return out().put_number(n); }
  Out& integer(std::int64_t n) { return number(static_cast<std::uint64_t>(n)); }
  Out& bytes(ByteView bytes) { return number(bytes.size()).put(bytes.data(), bytes.size()); }
  Out& text(std::string_view text) { return bytes(as_bytes(text)); }
  Out& integers(std::span<const std::int64_t> list) {
    number(list.size());
    for (const std::int64_t n : list) integer(n);
    return out();
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
  WireWriter& put_number(std::uint64_t n) {
    std::byte raw[sizeof n];
    store_le(raw, n);
    return put(raw, sizeof n);
  }
  Bytes finish() { return std::move(out_); }

 private:
  Bytes out_;
};

/// Whether what would be written is what was written, without writing it. Every save after the
/// first asks it for every tensor, so that numbers are compared in place, and a difference only
/// remembered.
class WireComparison : public WireForm<WireComparison> {
 public:
  explicit WireComparison(ByteView written)
      : at_(written.data()), end_(written.data() + written.size()) {}
  WireComparison& put(const void* data, std::size_t bytes) {
    if (has(bytes) && bytes > 0) {
      different_ |= static_cast<std::uint64_t>(std::memcmp(at_, data, bytes) != 0);
      at_ += bytes;
    }
    return *this;
  }
  WireComparison& put_number(std::uint64_t n) {
    if (has(sizeof n)) {
      different_ |= load_le<std::uint64_t>(at_) ^ n;
      at_ += sizeof n;
    }
    return *this;
  }
  bool same_so_far() const { return different_ == 0; }
  bool same() const { return same_so_far() && at_ == end_; }

 private:
  bool has(std::size_t bytes) {
    if (bytes <= static_cast<std::size_t>(end_ - at_)) return true;
    different_ = 1;
    return false;
  }

  const std::byte* at_;
  const std::byte* end_;
  std::uint64_t different_ = 0;  // bits that were not what was written
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
