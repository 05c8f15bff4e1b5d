#pragma once
// Messages between ranks, as bytes: numbers, and lengths before texts. The reader checks every
// length against what is left (kCorrupt): a peer of another version must not do harm.
//
//   number   seven bits a byte from the lowest on, the eighth says that more follow: most are
//            small, and every rank holds the descriptions of all ranks
#include <tessera/base/bytes.h>
#include <tessera/state/value.h>
#include <tessera/tensor/chunk.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera {

inline constexpr int kWireBits = 7;
inline constexpr std::uint64_t kWireMore = std::uint64_t{1} << kWireBits;

/// Low bits of a number that give the kind of a path's item; the other bits are a length.
inline constexpr int kPathKindBits = 2;

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
    return listed(list);
  }
  /// Per item its kind and, of a string key, the length; then the key, or the index.
  Out& path(const Path& path) {
    number(path.size());
    for (const PathItem& item : path) {
      const bool is_key = item.kind == PathItem::Kind::kKey;
      number(static_cast<std::uint64_t>(item.kind) | (is_key ? item.key.size() : 0)
                                                         << kPathKindBits);
      if (is_key)
        out().put(item.key.begin(), item.key.size());
      else
        integer(item.index);
    }
    return out();
  }
  /// How many extents it has and whether there is a range; its origin, its extents, the range.
  Out& chunk(const Chunk& chunk) {
    const std::uint64_t ranged = chunk.is_whole_box() ? 0 : 1;
    number(chunk.box.shape.extents().size() << 1 | ranged);
    integers(chunk.box.origin);
    listed(chunk.box.shape.extents());
    return ranged ? integer(chunk.flat_begin).integer(chunk.flat_end) : out();
  }

 private:
  Out& out() { return static_cast<Out&>(*this); }
  Out& listed(std::span<const std::int64_t> list) {
    for (const std::int64_t n : list) integer(n);
    return out();
  }
};

class WireWriter : public WireForm<WireWriter> {
 public:
  WireWriter() = default;
  /// Goes on after what was written before.
  explicit WireWriter(Bytes written) : out_(std::move(written)) {}
  void reserve(std::size_t bytes) { out_.reserve(bytes); }
  WireWriter& put(const void* data, std::size_t bytes) {
    const auto* first = static_cast<const std::byte*>(data);
    out_.insert(out_.end(), first, first + bytes);
    return *this;
  }
  WireWriter& put_number(std::uint64_t n) {
    for (; n >= kWireMore; n >>= kWireBits)
      out_.push_back(static_cast<std::byte>(n % kWireMore | kWireMore));
    out_.push_back(static_cast<std::byte>(n));
    return *this;
  }
  const Bytes& written() const { return out_; }
  /// Takes back what was written after the first `bytes`.
  void cut(std::size_t bytes) { out_.resize(bytes); }
  Bytes finish() { return std::move(out_); }

 private:
  Bytes out_;
};

class WireReader {
 public:
  explicit WireReader(ByteView bytes) : rest_(bytes) {}
  std::uint64_t number();
  std::int64_t integer() { return static_cast<std::int64_t>(number()); }
  /// A count of things that take `least_numbers` numbers or more each.
  std::size_t count(std::size_t least_numbers);
  ByteView bytes();
  std::string text() { return std::string(as_text(bytes())); }
  std::vector<std::int64_t> integers();
  Path path();
  Chunk chunk();
  bool at_end() const { return rest_.empty(); }

 private:
  std::vector<std::int64_t> listed(std::size_t count);
  ByteView take(std::uint64_t bytes);
  ByteView rest_;
};

}  // namespace tessera
