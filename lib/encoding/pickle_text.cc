#include "lib/encoding/pickle_text.h"

#include <charconv>
#include <cstdint>

#include "lib/encoding/utf8.h"

namespace tessera {
namespace {

/// Exactly `digits` hexadecimal digits at `at`.
std::optional<std::uint32_t> parse_hex(std::string_view text, std::size_t at, std::size_t digits) {
  if (at > text.size() || text.size() - at < digits) return std::nullopt;
  std::uint32_t value = 0;
  const char* begin = text.data() + at;
  const auto [last, error] = std::from_chars(begin, begin + digits, value, 16);
  if (error != std::errc() || last != begin + digits) return std::nullopt;
  return value;
}

std::optional<char> simple_escape(char c) {
  switch (c) {
    case 'n':
      return '\n';
    case 't':
      return '\t';
    case 'r':
      return '\r';
    case 'a':
      return '\a';
    case 'b':
      return '\b';
    case 'f':
      return '\f';
    case 'v':
      return '\v';
    case '\\':
    case '\'':
    case '"':
      return c;
    default:
      return std::nullopt;
  }
}

bool is_octal(char c) { return c >= '0' && c <= '7'; }

/// Appends what the escape after the backslash at `i - 1` means; returns the index after it, 0 if
/// malformed.
std::size_t append_escape(std::string_view text, std::size_t i, std::string& out) {
  if (i >= text.size()) return 0;
  if (const auto simple = simple_escape(text[i])) {
    out.push_back(*simple);
    return i + 1;
  }
  if (text[i] == 'x') {
    const auto value = parse_hex(text, i + 1, 2);
    if (!value) return 0;
    out.push_back(static_cast<char>(*value));
    return i + 3;
  }
  if (is_octal(text[i])) {
    unsigned value = 0;
    const std::size_t end = std::min(i + 3, text.size());
    for (; i < end && is_octal(text[i]); ++i)
      value = value * 8 + static_cast<unsigned>(text[i] - '0');
    out.push_back(static_cast<char>(value));
    return i;
  }
  out.push_back('\\');  // Python keeps an unknown escape as it is
  out.push_back(text[i]);
  return i + 1;
}

}  // namespace

std::optional<std::string> parse_python_string(std::string_view literal) {
  if (literal.ends_with('\r')) literal.remove_suffix(1);
  if (literal.size() < 2 || literal.front() != literal.back() ||
      (literal.front() != '\'' && literal.front() != '"'))
    return std::nullopt;
  literal = literal.substr(1, literal.size() - 2);
  std::string out;
  for (std::size_t i = 0; i < literal.size();) {
    if (literal[i] != '\\') {
      out.push_back(literal[i++]);
      continue;
    }
    i = append_escape(literal, i + 1, out);
    if (i == 0) return std::nullopt;
  }
  return out;
}

std::optional<std::string> parse_raw_unicode_escape(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    const bool escape =
        text[i] == '\\' && i + 1 < text.size() && (text[i + 1] == 'u' || text[i + 1] == 'U');
    if (!escape) {
      // A backslash before anything else stands for itself, and so does what follows it.
      const std::size_t count = text[i] == '\\' ? std::min<std::size_t>(2, text.size() - i) : 1;
      for (const char c : text.substr(i, count)) append_utf8(out, static_cast<unsigned char>(c));
      i += count;
      continue;
    }
    const std::size_t digits = text[i + 1] == 'u' ? 4 : 8;
    const auto value = parse_hex(text, i + 2, digits);
    if (!value || *value > 0x10ffff) return std::nullopt;
    append_utf8(out, *value);
    i += 2 + digits;
  }
  return out;
}

}  // namespace tessera
