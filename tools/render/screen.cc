#include "tools/render/screen.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <vector>

namespace tessera::tools {
namespace {

constexpr int kUsualWidth = 100;

struct Glyph {
  std::string_view bytes;
  int width = 1;
};

int code_point_width(char32_t c) {
  if ((c >= 0x300 && c <= 0x36F) || (c >= 0x200B && c <= 0x200F) || (c >= 0xFE00 && c <= 0xFE0F)) {
    return 0;
  }
  const bool wide = (c >= 0x1100 && c <= 0x115F) || (c >= 0x2E80 && c <= 0xA4CF) ||
                    (c >= 0xAC00 && c <= 0xD7A3) || (c >= 0xF900 && c <= 0xFAFF) ||
                    (c >= 0xFE30 && c <= 0xFE6F) || (c >= 0xFF00 && c <= 0xFF60) ||
                    (c >= 0x1F300 && c <= 0x1FAFF) || (c >= 0x20000 && c <= 0x3FFFD);
  return wide ? 2 : 1;
}

/// The next character; a byte that starts none counts as one column.
Glyph next_glyph(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  std::size_t length = first < 0x80    ? 1
                       : first >= 0xF0 ? 4
                       : first >= 0xE0 ? 3
                       : first >= 0xC0 ? 2
                                       : 1;
  length = std::min(length, text.size());
  if (length == 1) return {text.substr(0, 1), 1};
  char32_t c = first & (0xFF >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    c = c << 6 | (static_cast<unsigned char>(text[i]) & 0x3F);
  }
  return {text.substr(0, length), code_point_width(c)};
}

std::vector<Glyph> glyphs(std::string_view text) {
  std::vector<Glyph> result;
  while (!text.empty()) {
    result.push_back(next_glyph(text));
    text.remove_prefix(result.back().bytes.size());
  }
  return result;
}

/// Bytes of the longest run of glyphs (from the front, or the back) within `width`.
std::size_t bytes_within(const std::vector<Glyph>& all, int width, bool from_back) {
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Glyph& glyph = from_back ? all[all.size() - 1 - i] : all[i];
    width -= glyph.width;
    if (width < 0) break;
    bytes += glyph.bytes.size();
  }
  return bytes;
}

/// nullopt: nobody says.
std::optional<int> terminal_width() {
  if (const char* columns = std::getenv("COLUMNS")) {
    const int width = std::atoi(columns);
    if (width > 0) return width;
  }
  winsize size{};
  if (!isatty(STDOUT_FILENO)) return std::nullopt;
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return kUsualWidth;
}

bool colors_wanted() {
  const char* no_color = std::getenv("NO_COLOR");
  if (no_color && *no_color) return false;
  const char* term = std::getenv("TERM");
  if (!term || std::string_view(term) == "dumb") return false;
  return isatty(STDOUT_FILENO) == 1;
}

}  // namespace

std::string Screen::paint(Tint tint, std::string_view text) const {
  if (!color || tint == Tint::kPlain || text.empty()) return std::string(text);
  constexpr std::string_view kCodes[] = {"0", "1", "2", "31", "32", "33", "36"};
  std::string result = "\x1b[";
  result += kCodes[static_cast<std::size_t>(tint)];
  result += 'm';
  result += text;
  return result + "\x1b[0m";
}

Screen make_screen(ColorMode color) {
  const std::optional<int> width = terminal_width();
  return {std::clamp(width.value_or(kUsualWidth), 40, 1000),
          color == ColorMode::kAlways || (color == ColorMode::kAuto && colors_wanted()), !width};
}

std::string Screen::clip(std::string_view text, int columns) const {
  return whole ? std::string(text) : clip_middle(text, columns);
}

std::string Screen::wrap(std::string_view text, std::string_view indent) const {
  if (!whole) return tools::wrap(text, width, indent);
  return text.empty() ? std::string() : fmt::format("{}{}\n", indent, text);
}

int display_width(std::string_view text) {
  int width = 0;
  while (!text.empty()) {
    const Glyph glyph = next_glyph(text);
    width += glyph.width;
    text.remove_prefix(glyph.bytes.size());
  }
  return width;
}

/// Most bytes of a glyph with its combining marks.
constexpr std::size_t kMostBytes = 8;

std::string clip_end(std::string_view text, int width) {
  if (display_width(text) <= width) return std::string(text);
  if (width < 1) return {};
  const std::string_view front = text.substr(0, static_cast<std::size_t>(width) * kMostBytes);
  return std::string(text.substr(0, bytes_within(glyphs(front), width - 1, false))) + "…";
}

std::string clip_middle(std::string_view text, int width) {
  if (display_width(text) <= width) return std::string(text);
  if (width < 5) return clip_end(text, width);
  // Of a text of megabytes no more is looked at than a line can hold.
  const std::size_t room = static_cast<std::size_t>(width) * kMostBytes;
  const std::string_view front = text.substr(0, room);
  std::string_view end = text.substr(text.size() - std::min(room, text.size()));
  while (end.size() < text.size() && (static_cast<unsigned char>(end[0]) & 0xC0) == 0x80)
    end.remove_prefix(1);
  const int back = (width - 1) * 3 / 5;
  const std::size_t head = bytes_within(glyphs(front), width - 1 - back, false);
  const std::size_t tail = bytes_within(glyphs(end), back, true);
  return std::string(text.substr(0, head)) + "…" + std::string(text.substr(text.size() - tail));
}

std::string pad_right(std::string_view text, int width) {
  return std::string(text) +
         std::string(static_cast<std::size_t>(std::max(0, width - display_width(text))), ' ');
}
std::string pad_left(std::string_view text, int width) {
  return std::string(static_cast<std::size_t>(std::max(0, width - display_width(text))), ' ') +
         std::string(text);
}

std::string wrap(std::string_view text, int width, std::string_view indent) {
  const int room = std::max(1, width - display_width(indent));
  std::string result;
  std::string line;
  const auto end_line = [&] {
    if (!line.empty()) result += std::string(indent) + line + "\n";
    line.clear();
  };
  while (!text.empty()) {
    const std::size_t space = std::min(text.find(' '), text.size());
    std::string_view word = text.substr(0, space);
    text.remove_prefix(std::min(space + 1, text.size()));
    if (word.empty()) continue;
    if (!line.empty() && display_width(line) + 1 + display_width(word) > room) end_line();
    // A word that fits no line is cut, looking at no more of it than a line can hold.
    for (;;) {
      const std::string_view front = word.substr(0, static_cast<std::size_t>(room) * kMostBytes);
      if (front.size() == word.size() && display_width(word) <= room) break;
      const std::size_t most = std::max<std::size_t>(1, bytes_within(glyphs(front), room, false));
      // Behind a dot or slash of a name, where there is one in its second half.
      const std::size_t mark = front.substr(0, most).find_last_of("./");
      const std::size_t cut = mark != front.npos && mark >= most / 2 ? mark + 1 : most;
      line = word.substr(0, cut);
      word.remove_prefix(cut);
      end_line();
    }
    if (!line.empty() && !word.empty()) line += ' ';
    line += word;
  }
  end_line();
  return result;
}

}  // namespace tessera::tools
