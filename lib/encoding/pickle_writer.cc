#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/encoding/pickle_writer.h>

#include <map>

#include "lib/encoding/pickle_number.h"
#include "lib/encoding/utf8.h"

namespace tessera {

struct PickleEmitter::Memo {
  std::uint32_t next = 0;
  std::map<std::string, std::uint32_t, std::less<>> strings;
  std::map<std::string, std::uint32_t, std::less<>> globals;
};

namespace {

void append_byte(Bytes& out, int value) { out.push_back(static_cast<std::byte>(value)); }

void append(Bytes& out, std::string_view text) {
  const ByteView bytes = as_bytes(text);
  out.insert(out.end(), bytes.begin(), bytes.end());
}

template <class T>
void append_number(Bytes& out, T value) {
  const std::size_t at = out.size();
  out.resize(at + sizeof value);
  store_le(out.data() + at, value);
}

}  // namespace

PickleEmitter::PickleEmitter() : memo_(std::make_shared<Memo>()) { append(out_, "\x80\x02"); }

void PickleEmitter::none() { append_byte(out_, 'N'); }
void PickleEmitter::boolean(bool v) { append_byte(out_, v ? 0x88 : 0x89); }
void PickleEmitter::empty_dict() { append_byte(out_, '}'); }
void PickleEmitter::empty_list() { append_byte(out_, ']'); }
void PickleEmitter::empty_tuple() { append_byte(out_, ')'); }
void PickleEmitter::empty_set_call() { global("__builtin__", "set"); }
void PickleEmitter::mark() { append_byte(out_, '('); }
void PickleEmitter::tuple() { append_byte(out_, 't'); }
void PickleEmitter::set_items() { append_byte(out_, 'u'); }
void PickleEmitter::append_items() { append_byte(out_, 'e'); }
void PickleEmitter::reduce() { append_byte(out_, 'R'); }
void PickleEmitter::new_object() { append_byte(out_, 0x81); }
void PickleEmitter::new_object_ex() { append_byte(out_, 0x92); }
void PickleEmitter::build() { append_byte(out_, 'b'); }
void PickleEmitter::persistent_id() { append_byte(out_, 'Q'); }

void PickleEmitter::tuple_n(int n) {
  TESSERA_CHECK(n >= 1 && n <= 3);
  append_byte(out_, 0x84 + n);
}

void PickleEmitter::integer(std::int64_t v) {
  if (v >= 0 && v <= 0xff) {
    append_byte(out_, 'K');
    append_byte(out_, static_cast<int>(v));
  } else if (v >= 0 && v <= 0xffff) {
    append_byte(out_, 'M');
    append_number(out_, static_cast<std::uint16_t>(v));
  } else if (v >= INT32_MIN && v <= INT32_MAX) {
    append_byte(out_, 'J');
    append_number(out_, static_cast<std::int32_t>(v));
  } else {
    big_integer(fmt::format("{}", v));
  }
}

void PickleEmitter::big_integer(std::string_view decimal) {
  if (!is_decimal_integer(decimal) || decimal.size() > kMaxLongDigits)
    fail(Code::kUnsupported, "pickle: an integer of too many digits cannot be written");
  const std::string bytes = twos_complement_from_decimal(decimal);
  if (bytes.size() <= 255) {
    append_byte(out_, 0x8a);
    append_byte(out_, static_cast<int>(bytes.size()));
  } else {
    append_byte(out_, 0x8b);
    append_number(out_, static_cast<std::int32_t>(bytes.size()));
  }
  append(out_, bytes);
}

void PickleEmitter::real(double v) {
  append_byte(out_, 'G');
  append_number(out_, __builtin_bswap64(std::bit_cast<std::uint64_t>(v)));
}

void PickleEmitter::string(std::string_view v) {
  if (const auto found = memo_->strings.find(v); found != memo_->strings.end())
    return get(found->second);
  if (v.size() > UINT32_MAX) fail(Code::kUnsupported, "pickle: a string of 4 GiB or more");
  append_byte(out_, 'X');
  append_number(out_, static_cast<std::uint32_t>(v.size()));
  append(out_, v);
  memo_->strings.emplace(v, put());
}

void PickleEmitter::bytes(std::string_view v) {
  global("_codecs", "encode");
  const std::string text = utf8_from_latin1(v);
  if (text.size() > UINT32_MAX) fail(Code::kUnsupported, "pickle: bytes of 4 GiB or more");
  append_byte(out_, 'X');
  append_number(out_, static_cast<std::uint32_t>(text.size()));
  append(out_, text);
  string("latin1");
  tuple_n(2);
  reduce();
}

void PickleEmitter::global(std::string_view module, std::string_view name) {
  const std::string line = fmt::format("{}\n{}\n", module, name);
  if (const auto found = memo_->globals.find(line); found != memo_->globals.end())
    return get(found->second);
  if (module.find('\n') != std::string_view::npos || name.find('\n') != std::string_view::npos)
    fail(Code::kUnsupported, "pickle: a global's name with a line break");
  append_byte(out_, 'c');
  append(out_, line);
  memo_->globals.emplace(line, put());
}

std::uint32_t PickleEmitter::put() {
  const std::uint32_t index = memo_->next++;
  if (index <= 0xff) {
    append_byte(out_, 'q');
    append_byte(out_, static_cast<int>(index));
  } else {
    append_byte(out_, 'r');
    append_number(out_, index);
  }
  return index;
}

void PickleEmitter::get(std::uint32_t index) {
  TESSERA_CHECK(index < memo_->next);
  if (index <= 0xff) {
    append_byte(out_, 'h');
    append_byte(out_, static_cast<int>(index));
  } else {
    append_byte(out_, 'j');
    append_number(out_, index);
  }
}

Bytes PickleEmitter::finish() {
  append_byte(out_, '.');
  return std::move(out_);
}

}  // namespace tessera
