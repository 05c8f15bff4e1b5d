#include "lib/encoding/utf8.h"

#include <cstring>

namespace tessera {
namespace {

bool is_ascii_word(const char* p) {
  std::uint64_t word;
  std::memcpy(&word, p, sizeof word);
  return (word & 0x8080808080808080u) == 0;
}

/// Length of the sequence at the front of `p` (left > 0), 0 if malformed.
std::size_t sequence_length(const unsigned char* p, std::size_t left) {
  const unsigned char lead = p[0];
  if (lead < 0x80) return 1;
  const std::size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || length > left) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((p[i] & 0xc0) != 0x80) return 0;
  }
  if (lead == 0xe0 && p[1] < 0xa0) return 0;
  if (lead == 0xf0 && p[1] < 0x90) return 0;
  if (lead == 0xf4 && p[1] > 0x8f) return 0;
  return length;
}

}  // namespace

bool is_python_utf8(std::string_view text) {
  std::size_t i = 0;
  while (i < text.size()) {
    if (text.size() - i >= 8 && is_ascii_word(text.data() + i)) {
      i += 8;
      continue;
    }
    const auto* p = reinterpret_cast<const unsigned char*>(text.data()) + i;
    const std::size_t length = sequence_length(p, text.size() - i);
    if (length == 0) return false;
    i += length;
  }
  return true;
}

void append_utf8(std::string& out, std::uint32_t c) {
  const auto tail = [&](int shift) {
    out.push_back(static_cast<char>(0x80 | (c >> shift & 0x3f)));
  };
  if (c < 0x80) {
    out.push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out.push_back(static_cast<char>(0xc0 | c >> 6));
    tail(0);
  } else if (c < 0x10000) {
    out.push_back(static_cast<char>(0xe0 | c >> 12));
    tail(6);
    tail(0);
  } else {
    out.push_back(static_cast<char>(0xf0 | c >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
}

std::string utf8_from_latin1(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  for (const char c : bytes) append_utf8(out, static_cast<unsigned char>(c));
  return out;
}

bool latin1_from_utf8(std::string_view text, std::string& out) {
  out.clear();
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto lead = static_cast<unsigned char>(text[i]);
    if (lead < 0x80) {
      out.push_back(text[i]);
    } else if (lead <= 0xc3 && i + 1 < text.size()) {
      out.push_back(
          static_cast<char>((lead & 3) << 6 | (static_cast<unsigned char>(text[++i]) & 0x3f)));
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace tessera
