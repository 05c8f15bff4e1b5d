#pragma once
// Bytes of a window one after the other, for scan_pickle: a block is held, the rest stays in the
// file.
#include <tessera/base/bytes.h>
#include <tessera/encoding/byte_window.h>

#include <algorithm>
#include <cstdint>
#include <string>

namespace tessera {

/// Thrown where the stream ends within an opcode; never leaves scan_pickle.
struct StreamEnds {};

class ScanReader {
 public:
  explicit ScanReader(const ByteWindow& window) : window_(window) {}

  std::uint64_t position() const { return position_; }
  bool at_end() const { return position_ >= window_.length; }
  const ByteWindow& window() const { return window_; }

  std::uint8_t byte() {
    if (position_ >= loaded_at_ + block_.size() || position_ < loaded_at_) load();
    return std::to_integer<std::uint8_t>(block_[position_++ - loaded_at_]);
  }
  /// Little-endian, of `bytes` bytes.
  std::uint64_t number(int bytes) {
    std::uint64_t out = 0;
    for (int i = 0; i < bytes; ++i) out |= std::uint64_t{byte()} << (8 * i);
    return out;
  }
  void skip(std::uint64_t length) {
    if (length > window_.length - position_) throw StreamEnds{};
    position_ += length;
  }
  /// Up to and without the line end; what is longer than `most` is skipped and comes back cut.
  std::string line(std::size_t most) {
    std::string out;
    for (std::uint8_t c = byte(); c != '\n'; c = byte())
      if (out.size() < most) out.push_back(static_cast<char>(c));
    return out;
  }

 private:
  void load() {
    constexpr std::uint64_t kBlock = std::uint64_t{64} << 10;
    if (at_end()) throw StreamEnds{};
    block_ = window_.read(position_, std::min(kBlock, window_.length - position_));
    loaded_at_ = position_;
  }

  ByteWindow window_;
  Bytes block_;
  std::uint64_t loaded_at_ = 0;
  std::uint64_t position_ = 0;
};

}  // namespace tessera
