#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/encoding/pickle_writer.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "lib/encoding/pickle_number.h"
#include "lib/encoding/utf8.h"

namespace tessera {

struct PickleEmitter::Memo {
  std::map<std::string, std::uint32_t, std::less<>> strings;
  std::map<std::string, std::uint32_t, std::less<>> globals;
};

void PickleEmitter::append(const void* data, std::size_t length) {
  if (output_ == Output::kBytes) {
    if (out_.size() - length_ < length)
      out_.resize(std::max<std::size_t>(2 * out_.size(), length_ + length + 64));
    if (length > 0) std::memcpy(out_.data() + length_, data, length);
  }
  length_ += length;
}

void PickleEmitter::append_byte(int value) {
  const auto byte = static_cast<std::byte>(value);
  append(&byte, 1);
}

template <class T>
void PickleEmitter::append_number(int opcode, T value) {
  std::byte bytes[1 + sizeof value];
  bytes[0] = static_cast<std::byte>(opcode);
  store_le(bytes + 1, value);
  append(bytes, sizeof bytes);
}

PickleEmitter::PickleEmitter(Output output) : output_(output), memo_(std::make_shared<Memo>()) {
  append_text("\x80\x02");
}

void PickleEmitter::empty_set_call() { global("__builtin__", "set"); }

void PickleEmitter::tuple_n(int n) {
  TESSERA_CHECK(n >= 1 && n <= 3);
  opcode(0x84 + n);
}

void PickleEmitter::write_integer(std::int64_t v) {
  if (v >= 0 && v <= 0xff) {
    append_number('K', static_cast<std::uint8_t>(v));
  } else if (v >= 0 && v <= 0xffff) {
    append_number('M', static_cast<std::uint16_t>(v));
  } else if (v >= INT32_MIN && v <= INT32_MAX) {
    append_number('J', static_cast<std::int32_t>(v));
  } else {
    big_integer(fmt::format("{}", v));
  }
}

void PickleEmitter::big_integer(std::string_view decimal) {
  if (!is_decimal_integer(decimal) || decimal.size() > kMaxLongDigits)
    fail(Code::kUnsupported, "pickle: an integer of too many digits cannot be written");
  const std::string bytes = twos_complement_from_decimal(decimal);
  if (bytes.size() <= 255) {
    append_number(0x8a, static_cast<std::uint8_t>(bytes.size()));
  } else {
    append_number(0x8b, static_cast<std::int32_t>(bytes.size()));
  }
  append_text(bytes);
}

void PickleEmitter::real(double v) {
  append_number('G', __builtin_bswap64(std::bit_cast<std::uint64_t>(v)));
}

std::uint32_t PickleEmitter::string(std::string_view v) {
  if (const auto found = memo_->strings.find(v); found != memo_->strings.end()) {
    get(found->second);
    return found->second;
  }
  if (v.size() > UINT32_MAX) fail(Code::kUnsupported, "pickle: a string of 4 GiB or more");
  append_number('X', static_cast<std::uint32_t>(v.size()));
  append_text(v);
  const std::uint32_t index = put();
  memo_->strings.emplace(v, index);
  return index;
}

void PickleEmitter::bytes(std::string_view v) {
  global("_codecs", "encode");
  const std::string text = utf8_from_latin1(v);
  if (text.size() > UINT32_MAX) fail(Code::kUnsupported, "pickle: bytes of 4 GiB or more");
  append_number('X', static_cast<std::uint32_t>(text.size()));
  append_text(text);
  string("latin1");
  tuple_n(2);
  reduce();
}

std::uint32_t PickleEmitter::global(std::string_view module, std::string_view name) {
  const std::string line = fmt::format("{}\n{}\n", module, name);
  if (const auto found = memo_->globals.find(line); found != memo_->globals.end()) {
    get(found->second);
    return found->second;
  }
  if (module.find('\n') != std::string_view::npos || name.find('\n') != std::string_view::npos)
    fail(Code::kUnsupported, "pickle: a global's name with a line break");
  append_byte('c');
  append_text(line);
  const std::uint32_t index = put();
  memo_->globals.emplace(line, index);
  return index;
}

std::uint32_t PickleEmitter::put() {
  const std::uint32_t index = next_++;
  if (index <= 0xff) {
    append_number('q', static_cast<std::uint8_t>(index));
  } else {
    append_number('r', index);
  }
  return index;
}

void PickleEmitter::write_get(std::uint32_t index) {
  TESSERA_CHECK(index < next_);
  if (index <= 0xff) {
    append_number('h', static_cast<std::uint8_t>(index));
  } else {
    append_number('j', index);
  }
}

Bytes PickleEmitter::finish() {
  opcode('.');
  out_.resize(output_ == Output::kBytes ? length_ : 0);
  return std::move(out_);
}

}  // namespace tessera
