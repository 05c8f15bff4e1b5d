#pragma once
// The bytes of a pickle from its front on, through a buffer of bounded size.
#include <tessera/base/bytes.h>
#include <tessera/encoding/byte_window.h>

#include <algorithm>
#include <cstring>
#include <string_view>

namespace tessera::dcp {

/// Thrown inside the short way of reading to leave the file to the long one.
struct LeaveIt {};

class PlainStream {
 public:
  explicit PlainStream(const ByteWindow& window)
      : window_(window),
        buffer_(static_cast<std::size_t>(std::min<std::uint64_t>(window.length, kBufferBytes))) {}

  /// Makes the next opcode and its argument, but for long texts, lie in the buffer.
  void begin_opcode() {
    if (end_ - at_ < kMostArgumentBytes && read_ < window_.length) refill();
  }
  std::uint8_t byte() { return std::to_integer<std::uint8_t>(*take(1)); }
  template <class T>
  T number() {
    return load_le<T>(take(sizeof(T)));
  }
  /// Valid until the next opcode.
  std::string_view text(std::uint64_t length) {
    if (length > end_ - at_ && read_ < window_.length) refill();
    return {reinterpret_cast<const char*>(take(length)), static_cast<std::size_t>(length)};
  }
  std::string_view line() {
    const std::string_view rest(reinterpret_cast<const char*>(buffer_.data() + at_), end_ - at_);
    const std::size_t length = rest.find('\n');
    if (length == std::string_view::npos) throw LeaveIt{};
    at_ += length + 1;
    return rest.substr(0, length);
  }
  std::uint64_t left() const { return end_ - at_ + (window_.length - read_); }
  std::uint64_t position() const { return window_.length - left(); }

 private:
  static constexpr std::uint64_t kBufferBytes = std::uint64_t{1} << 20;
  static constexpr std::size_t kMostArgumentBytes = 4096;

  const std::byte* take(std::uint64_t length) {
    if (length > end_ - at_) throw LeaveIt{};
    const std::byte* bytes = buffer_.data() + at_;
    at_ += static_cast<std::size_t>(length);
    return bytes;
  }
  void refill() {
    std::memmove(buffer_.data(), buffer_.data() + at_, end_ - at_);
    end_ -= at_;
    at_ = 0;
    const auto more = static_cast<std::size_t>(
        std::min<std::uint64_t>(buffer_.size() - end_, window_.length - read_));
    window_.read(read_, MutableBytes(buffer_).subspan(end_, more));
    end_ += more;
    read_ += more;
  }

  ByteWindow window_;
  Bytes buffer_;
  std::size_t at_ = 0;
  std::size_t end_ = 0;
  std::uint64_t read_ = 0;
};

}  // namespace tessera::dcp
