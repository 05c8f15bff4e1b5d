#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
namespace tessera {
namespace {

/// Length of the valid UTF-8 sequence that starts `text`, or 0 (overlong forms, surrogates, >
/// U+10FFFF).
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xC0) != 0x80) return 0;
  const unsigned second = byte(1);
  if ((first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F)) return 0;
  if ((first == 0xF0 && second < 0x90) || (first == 0xF4 && second > 0x8F)) return 0;
  return length;
}

/// Bytes per unit of a coreutils suffix: "" 1, "K" and "KiB" 1024, "KB" 1000, ...
std::optional<std::uint64_t> suffix_bytes(std::string_view suffix) {
  if (suffix.empty() || suffix == "B") return 1;
  constexpr std::string_view kLetters = "KMGTPE";
  const char letter = suffix[0] == 'k' ? 'K' : suffix[0];
  const auto power = kLetters.find(letter);
  if (power == std::string_view::npos) return std::nullopt;
  const std::string_view rest = suffix.substr(1);
  if (!rest.empty() && rest != "B" && rest != "iB") return std::nullopt;
  const std::uint64_t base = rest == "B" ? 1000 : 1024;
  std::uint64_t unit = base;
  for (std::size_t i = 0; i < power; ++i) unit *= base;
  return unit;
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replace = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({replace, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

std::uint64_t parse_size(std::string_view text) {
  std::uint64_t number = 0;
  std::size_t digits = 0;
  bool overflow = false;
  for (; digits < text.size() && is_digit(text[digits]); ++digits) {
    overflow |= __builtin_mul_overflow(number, std::uint64_t{10}, &number);
    overflow |=
        __builtin_add_overflow(number, static_cast<std::uint64_t>(text[digits] - '0'), &number);
  }
  const auto unit = suffix_bytes(text.substr(digits));
  if (digits == 0 || !unit)
    fail(Code::kInvalidArgument, fmt::format("\"{}\" is no size", printable(text)),
         "write 512, 64KiB, 5GB (5e9 bytes), 5GiB or 5G (5 x 2^30 bytes)");
  overflow |= __builtin_mul_overflow(number, *unit, &number);
  if (overflow)
    fail(Code::kInvalidArgument, fmt::format("size \"{}\" is above 2^64 - 1", printable(text)));
  return number;
}

std::string with_noun(std::int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string format_bytes(std::uint64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  constexpr std::array kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  // 1023.5 would print as 1024.
  for (; value >= 1023.5 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  if (value < 99.95) return fmt::format("{:.1f} {}", value, kUnits[unit]);
  return fmt::format("{:.0f} {}", value, kUnits[unit]);
}

namespace {

/// The code point of a whole UTF-8 sequence of `length` bytes.
unsigned code_point(std::string_view text, std::size_t length) {
  unsigned c = static_cast<unsigned char>(text[0]) & (length == 1 ? 0x7Fu : 0xFFu >> (length + 1));
  for (std::size_t i = 1; i < length; ++i)
    c = c << 6 | (static_cast<unsigned char>(text[i]) & 0x3Fu);
  return c;
}

/// Marks, embeddings and isolates of bidirectional text, line and paragraph separators, and what
/// takes no room (zero-width spaces and joiners, the byte order mark, tags): a name with them reads
/// as another.
bool misleads(unsigned c) {
  constexpr std::array<std::pair<unsigned, unsigned>, 10> kRanges{{{0x00AD, 0x00AD},
                                                                   {0x034F, 0x034F},
                                                                   {0x061C, 0x061C},
                                                                   {0x115F, 0x1160},
                                                                   {0x180E, 0x180E},
                                                                   {0x200B, 0x200F},
                                                                   {0x2028, 0x202E},
                                                                   {0x2060, 0x206F},
                                                                   {0xFEFF, 0xFEFF},
                                                                   {0xE0000, 0xE007F}}};
  return std::ranges::any_of(kRanges, [c](const auto& r) { return r.first <= c && c <= r.second; });
}

}  // namespace

std::string printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const auto byte = static_cast<unsigned char>(text[0]);
    const std::size_t length = utf8_length(text);
    // C1 controls (U+0080 to U+009F) drive terminals just like ESC does.
    const bool c1 = length == 2 && byte == 0xC2 && static_cast<unsigned char>(text[1]) < 0xA0;
    if (byte == '\n') {
      out += "\\n";
    } else if (byte == '\t') {
      out += "\\t";
    } else if (length == 0 || byte < 0x20 || byte == 0x7F) {
      out += fmt::format("\\x{:02x}", byte);
    } else if (length > 1 && misleads(code_point(text, length))) {
      out += fmt::format("\\u{:04x}", code_point(text, length));
    } else if (c1) {
      out += fmt::format("\\xc2\\x{:02x}", static_cast<unsigned char>(text[1]));
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return out;
}

std::string nearest(std::string_view word, std::span<const std::string_view> candidates) {
  constexpr std::size_t kLongest = 256;  // the distance costs |word| x |candidate|
  if (word.size() > kLongest) return {};
  // The end of a dotted name is what people know of it.
  const std::string end = "." + std::string(word);
  for (const std::string_view candidate : candidates)
    if (end.size() > 1 && candidate.ends_with(end)) return std::string(candidate);
  // Near: at most a third of the letters differ, and one at least may.
  std::size_t best = std::max<std::size_t>(1, word.size() / 3) + 1;
  std::string_view found;
  for (const std::string_view candidate : candidates) {
    if (candidate.size() > kLongest) continue;
    const std::size_t distance = edit_distance(word, candidate);
    if (distance < best && distance < candidate.size()) {
      best = distance;
      found = candidate;
    }
  }
  return std::string(found);
}

bool is_decimal(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, is_digit);
}

bool natural_less(std::string_view a, std::string_view b) {
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < a.size() && j < b.size()) {
    if (!is_digit(a[i]) || !is_digit(b[j])) {
      const auto x = static_cast<unsigned char>(a[i++]);
      const auto y = static_cast<unsigned char>(b[j++]);
      if (x != y) return x < y;
      continue;
    }
    const auto number = [](std::string_view text, std::size_t& at) {
      while (at < text.size() && text[at] == '0') ++at;
      const std::size_t begin = at;
      while (at < text.size() && is_digit(text[at])) ++at;
      return text.substr(begin, at - begin);
    };
    const std::string_view x = number(a, i);
    const std::string_view y = number(b, j);
    if (x.size() != y.size()) return x.size() < y.size();
    if (x != y) return x < y;
  }
  if ((i < a.size()) != (j < b.size())) return j < b.size();
  return a < b;  // equal but for leading zeros: still a strict order
}

bool is_valid_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string to_hex(std::span<const std::uint8_t> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const std::uint8_t byte : bytes) {
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  return out;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const auto at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

}  // namespace tessera
