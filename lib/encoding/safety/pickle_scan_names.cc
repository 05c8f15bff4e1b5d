#include <tessera/base/text.h>

#include <algorithm>
#include <array>

#include "lib/encoding/safety/pickle_scan.h"

namespace tessera {
namespace {

constexpr std::size_t kMostSearchedName = 255;
constexpr std::uint64_t kSearchedAtOnce = std::uint64_t{1} << 20;

/// A dotted identifier, as nearly all names are; raw bytes seldom look so.
bool is_dotted_identifier(std::string_view text) {
  return text.size() > 1 &&
         std::ranges::all_of(text,
                             [](char c) {
                               return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                                      (c >= '0' && c <= '9') || c == '_' || c == '.';
                             }) &&
         !is_digit(text.front());
}

using FoundGlobal = std::pair<std::string_view, std::string_view>;

/// c module \n name \n
std::optional<FoundGlobal> text_global(std::string_view text) {
  const std::size_t first = text.find('\n');
  if (first == std::string_view::npos || first > kMostSearchedName) return std::nullopt;
  const std::size_t second = text.find('\n', first + 1);
  if (second == std::string_view::npos || second - first > kMostSearchedName) return std::nullopt;
  return FoundGlobal{text.substr(0, first), text.substr(first + 1, second - first - 1)};
}

/// SHORT_BINUNICODE module [MEMOIZE] SHORT_BINUNICODE name [MEMOIZE] STACK_GLOBAL
std::optional<FoundGlobal> stack_global(std::string_view text) {
  std::array<std::string_view, 2> names;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i == 1) {
      if (text.empty() || text[0] != '\x8c') return std::nullopt;
      text.remove_prefix(1);
    }
    if (text.empty()) return std::nullopt;
    const auto length = static_cast<std::uint8_t>(text[0]);
    if (text.size() < std::size_t{1} + length) return std::nullopt;
    names[i] = text.substr(1, length);
    text.remove_prefix(std::size_t{1} + length);
    if (text.starts_with('\x94')) text.remove_prefix(1);
  }
  if (!text.starts_with('\x93')) return std::nullopt;
  return FoundGlobal{names[0], names[1]};
}

void add_found(const FoundGlobal& global, std::uint64_t offset, PickleScan& scan) {
  if (!is_dotted_identifier(global.first) || !is_dotted_identifier(global.second)) return;
  const std::string name = std::string(global.first).append(".").append(global.second);
  if (scan.uses.size() >= PickleScan::kMostUses ||
      std::ranges::find(scan.uses, name, &PickleUse::name) != scan.uses.end())
    return;
  scan.uses.push_back({name, GlobalRole::kNamed,
                       judge_global(global.first, global.second, GlobalRole::kNamed), offset});
}

}  // namespace

void search_names(const ByteWindow& window, std::uint64_t from, PickleScan& scan) {
  constexpr std::uint64_t kOverlap = 2 * kMostSearchedName + 8;
  for (std::uint64_t at = from; at < window.length; at += kSearchedAtOnce) {
    const Bytes block = window.read(at, std::min(kSearchedAtOnce + kOverlap, window.length - at));
    const std::string_view text = as_text(block);
    const std::string_view starts = text.substr(0, kSearchedAtOnce);
    for (std::size_t i = starts.find_first_of("c\x8c"); i != std::string_view::npos;
         i = starts.find_first_of("c\x8c", i + 1)) {
      const std::string_view rest = text.substr(i + 1);
      if (const auto global = text[i] == 'c' ? text_global(rest) : stack_global(rest))
        add_found(*global, at + i, scan);
    }
  }
}

}  // namespace tessera
